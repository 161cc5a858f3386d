"""How fast training batches of images come off the memory-mapped cache, on one core.

    python benchmarks/reading.py                       # images that it makes itself
    python benchmarks/reading.py --folder PACS         # yours

One epoch of shuffled batches of 32 at 64 × 64, as a client's training reads them: gathered from the map, turned to
floats between 0 and 1. The first epoch after caching is timed, then a second, and one with augmentation. Goal for the
first: 5,000 images a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from farfield.federation.client import Client, Rows
from farfield.tasks import Task, load_folder

GOAL = 5000


def make_images(root: Path, images: int) -> None:
    """Noise in four domains of five classes, as JPEG files of 128 × 128."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(images):
        folder = root / f"domain-{number % 4}" / f"class-{number // 4 % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        small = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(small).resize((128, 128)).save(folder / f"{number:05d}.jpg", quality=90)


def epoch(task: Task, augment: str, round: int) -> float:
    """Images a second over one shuffled epoch of all domains."""
    rows = Rows({d.name: d for d in task.domains}, [(d.name, torch.arange(len(d))) for d in task.domains])
    client = Client(0, "all", "all", rows, rows, seed=0, round=round, phase="train", augment=augment)
    started = time.perf_counter()
    seen = sum(len(batch.y) for batch in client.batches(32))
    return seen / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a folder domain/class/*.jpg; made of noise by default")
    parser.add_argument("--images", type=int, default=8000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FARFIELD_CACHE"] = f"{scratch}/cache"
        folder = arguments.folder
        if folder is None:
            folder = Path(scratch) / "images"
            make_images(folder, arguments.images)
        started = time.perf_counter()
        task = load_folder(folder)
        count = sum(len(d) for d in task.domains)
        seconds = time.perf_counter() - started
        print(f"caching {count} images at 64 x 64: {seconds:.1f} s ({count / seconds:.0f} images/s)")
        first = epoch(task, "none", 1)
        print(f"first epoch after caching: {first:.0f} images/s ({'goal met' if first >= GOAL else 'goal missed'})")
        print(f"second epoch: {epoch(task, 'none', 2):.0f} images/s")
        print(f"with augmentation: {epoch(task, 'standard', 3):.0f} images/s")


if __name__ == "__main__":
    main()
