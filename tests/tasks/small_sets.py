"""Small files with the layout of the real data sets, made up."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def arrays(
    train: int, test: int, image: Sequence[int] = (28, 28), classes: int = 10, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random images whose labels go 0, 1, 2, … in turn."""
    draw = np.random.default_rng(seed)
    return {
        "x_train": draw.integers(0, 256, (train, *image), dtype=np.uint8),
        "y_train": (np.arange(train) % classes).astype(np.uint8),
        "x_test": draw.integers(0, 256, (test, *image), dtype=np.uint8),
        "y_test": (np.arange(test) % classes).astype(np.uint8),
    }


def save(path: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(path, **content)
    return path


def idx(array: np.ndarray) -> bytes:
    """The idx format, written from its description: magic, sizes as big-endian numbers, bytes."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def save_idx(folder: Path, content: dict[str, np.ndarray], train: str, test: str, zipped: bool = True) -> Path:
    folder.mkdir(parents=True)
    for split, name in (("train", train), ("test", test)):
        for kind, array in (("images-idx3", content[f"x_{split}"]), ("labels-idx1", content[f"y_{split}"])):
            plain = idx(array)
            ending = ".gz" if zipped else ""
            (folder / f"{name}-{kind}-ubyte{ending}").write_bytes(gzip.compress(plain) if zipped else plain)
    return folder


def records(x: np.ndarray, *labels: np.ndarray) -> bytes:
    """CIFAR's binary version: label bytes and then the planes of each image."""
    rows = []
    for number, image in enumerate(x):
        rows.append(bytes(int(y[number]) for y in labels) + image.transpose(2, 0, 1).tobytes())
    return b"".join(rows)
