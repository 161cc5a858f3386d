"""Decoded and augmented training images, against PyTorch's DataLoader with Pillow in two worker processes.

Both crop JPEG files, resize them to 64 × 64, flip and jitter them, and give shuffled batches of 32. Farfield decodes
into its cache once, so the first epoch, which decodes, and a later one are measured apart. The loader does with Pillow
what torchvision's transforms of PIL images do.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.interleaved import interleaved
from benchmarks.reading import epoch, make_images
from benchmarks.speed.case import Case, Figure, Options, Outcome
from farfield.tasks import Task, load_folder

IMAGES, SIZE, BATCH, WORKERS = 4000, 64, 32, 2


class Files(Dataset[tuple[Tensor, int]]):
    """Files that are decoded and augmented with Pillow, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.rglob("*.jpg"))
        classes = sorted({file.parent.name for file in self._files})
        self._labels = [classes.index(file.parent.name) for file in self._files]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self._files[index]) as image:
            return as_tensor(augmented(image.convert("RGB"))), self._labels[index]


def augmented(image: Image.Image) -> Image.Image:
    """Crop 70 to 100 % of the area, resize, flip, jitter brightness, contrast, saturation and hue; a tenth is grey."""
    side = random.uniform(0.7, 1.0) ** 0.5
    ratio = random.uniform(0.75, 4 / 3) ** 0.5
    width = min(round(image.width * side * ratio), image.width)
    height = min(round(image.height * side / ratio), image.height)
    left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
    box = (left, top, left + width, top + height)
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(random.uniform(0.7, 1.3))
    hue, saturation, value = image.convert("HSV").split()
    turn = random.randint(-76, 76)
    hue = hue.point([(level + turn) % 256 for level in range(256)])
    image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
    return image.convert("L").convert("RGB") if random.random() < 0.1 else image


def as_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)


def run(options: Options) -> Outcome:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "images"
        make_images(folder, 200 if options.short else IMAGES)
        loader = DataLoader(Files(folder), BATCH, shuffle=True, num_workers=WORKERS)
        kept: dict[str, Task] = {}

        def decoding(turn: int) -> Callable[[], Any]:
            os.environ["FARFIELD_CACHE"] = f"{scratch}/cache-{turn}"

            def timed() -> None:
                kept["task"] = load_folder(folder)
                epoch(kept["task"], "standard", turn)

            return timed

        def cached(turn: int) -> Callable[[], Any]:
            if "task" not in kept:
                decoding(turn)()
            return lambda: epoch(kept["task"], "standard", turn)

        def with_pillow(turn: int) -> Callable[[], Any]:
            return lambda: sum(len(y) for _, y in loader)

        contenders = {"decoding": decoding, "cached": cached, "Pillow": with_pillow}
        before = os.environ.get("FARFIELD_CACHE")
        try:
            timings = interleaved(contenders, options.turns(7), warm_up=1)
        finally:
            os.environ.pop("FARFIELD_CACHE", None)
            if before is not None:
                os.environ["FARFIELD_CACHE"] = before
    figures = (
        Figure.of("speed of the first epoch, which decodes", timings.ratio("Pillow", "decoding"), 3.0, "at least"),
        Figure.of("speed of a later epoch", timings.ratio("Pillow", "cached"), 3.0, "at least"),
    )
    return Outcome(figures, (), timings.medians())


CASE = Case("image-reading", "decoding and augmenting images, against a PIL DataLoader with two workers", run)
