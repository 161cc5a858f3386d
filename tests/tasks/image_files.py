"""Small image folders for tests, made with Pillow in the layouts of public sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

HUES = {"cat": (200, 60, 40), "dog": (40, 180, 80), "cow": (60, 60, 200)}


def picture(seed: int, colour: tuple[int, int, int] = (120, 120, 120), size: tuple[int, int] = (24, 20)) -> Image.Image:
    """A noisy picture around a colour; another seed gives another picture."""
    noise = np.random.default_rng(seed).normal(0, 25, (size[1], size[0], 3))
    return Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8))


def save(path: Path, seed: int, label: str = "cat") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, HUES.get(label, (120, 120, 120))).save(path)
    return path


def make_folder(
    root: Path,
    counts: Mapping[str, Mapping[str, int]] | None = None,
    *,
    suffix: str = ".png",
    between: str = "",
) -> Path:
    """`root/domain/[between/]class/number.png`, every file with other content."""
    seed = 0
    counts = counts or {domain: {"cat": 8, "dog": 8} for domain in ("north", "south", "west")}
    for domain, classes in counts.items():
        for label, count in classes.items():
            (root / domain / between / label).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                save(root / domain / between / label / f"{number:03d}{suffix}", seed, label)
                seed += 1
    return root
