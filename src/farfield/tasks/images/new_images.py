"""Image files for a trained model: files and folders of any depth, read as the files of its training were."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.models import TimmError, WeightsError
from farfield.reproducibility.devices import CPU
from farfield.tasks.data_folder.store import cache_folder
from farfield.tasks.images.computed_apart import computed_for
from farfield.tasks.images.features import FeatureError, array_features, file_features, frozen
from farfield.tasks.images.image_set import ImageError, ImageInput, ImageSet
from farfield.tasks.images.layouts import images_in, unread_notes
from farfield.tasks.images.pixels import decoded

#: Examples of more bytes than this go to a file that vanishes with them, so that a folder need not fit into memory.
IN_MEMORY = 1 << 30


def find_files(paths: Sequence[Path]) -> ImageSet:
    """All images among files and folders, by their path in the folder that holds everything that was given.

    A file that is named is taken whatever its name ends in; in folders the ending decides, as in training.
    """
    found: dict[str, None] = {}
    notes: list[str] = []
    for path in paths:
        if path.is_dir():
            unread: list[Path] = []
            inner = images_in(path, unread)
            passed_over = unread_notes(path, unread)
            if not inner:
                none = f"there are no images in '{path}' (png, jpg, bmp, webp, gif, tiff, …), at any depth"
                raise ImageError("; ".join([none, *passed_over]))
            notes += passed_over
            found |= dict.fromkeys(os.path.abspath(image) for image in inner)
        elif path.is_file():
            found[os.path.abspath(path)] = None
        else:
            raise ImageError(f"there is no file or folder '{path}'")
    root = os.path.commonpath([os.path.abspath(p if p.is_dir() else p.parent) for p in paths])
    names = tuple(Path(os.path.relpath(image, root)).as_posix() for image in found)
    shown = Path(root).relative_to(Path.cwd()) if Path(root).is_relative_to(Path.cwd()) else Path(root)
    labels = np.zeros(len(names), dtype=np.int64)
    return ImageSet(shown, names, labels, domains=("",), sizes=(len(names),), classes=(), notes=tuple(notes))


def read_files(images: ImageSet, way: ImageInput, device: torch.device = CPU) -> Tensor:
    """The examples of a model that was trained on image files: pixels, or features of its frozen backbone.

    The backbone computes on `device`; the examples are on the CPU.
    """
    if not way.backbone:
        return _gathered(decoded(images, way.size), (len(images), 3, way.size, way.size), np.uint8)
    shape = (len(images), _width(way))
    return _gathered(computed_for(device, lambda: file_features(images, way, device)), shape, np.float32)


def read_arrays(x: Tensor, way: ImageInput, device: torch.device = CPU) -> Tensor:
    """The examples of a model that was trained on features of images that were arrays."""
    shape = (len(x), _width(way))
    return _gathered(computed_for(device, lambda: array_features([x], way, device)), shape, np.float32)


def _width(way: ImageInput) -> int:
    try:
        return frozen(way.backbone, way.weights)[1]
    except (WeightsError, TimmError) as error:
        raise FeatureError(f"this model takes features of {way.backbone}, and {error}") from error


def _gathered(parts: Iterable[NDArray[Any]], shape: tuple[int, ...], dtype: type[np.generic]) -> Tensor:
    rows = _room(shape, np.dtype(dtype))
    start = 0
    for part in parts:
        rows[start : start + len(part)] = part
        start += len(part)
    return torch.from_numpy(rows)


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if int(np.prod(shape)) * dtype.itemsize <= IN_MEMORY:
        return np.empty(shape, dtype)
    cache_folder().mkdir(parents=True, exist_ok=True)
    # Without a name from the start; the map keeps it until the last tensor over it is gone.
    with tempfile.TemporaryFile(dir=cache_folder()) as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
