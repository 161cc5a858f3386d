"""What a trained model is asked about, from files of the kind that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.errors import UserError
from farfield.models import ModelSpec
from farfield.reproducibility.devices import CPU
from farfield.tasks.images.image_set import SUFFIXES, ImageInput
from farfield.tasks.images.new_images import find_files, read_arrays, read_files
from farfield.tasks.unpacking import array_names, load_npy, load_npz
from farfield.tasks.user_data.bag_of_words import FittedWords
from farfield.tasks.user_data.columns import encode_numbers
from farfield.tasks.user_data.preparation import FittedTable
from farfield.tasks.user_data.table import read_rows

ARRAYS = (".npy", ".npz", ".csv")


class ExamplesError(UserError):
    """Files that this model cannot be asked about."""


@dataclass(frozen=True)
class Examples:
    """What files hold, as the model takes it. Unpacks into `x` and `notes`."""

    x: Tensor
    #: What must be said of them, one sentence per note: unseen categories, missing values.
    notes: tuple[str, ...] = ()
    #: For images the path of each, in the folder that holds everything that was given; empty for rows.
    files: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.notes))


def read_examples(
    paths: Sequence[Path],
    spec: ModelSpec,
    preparation: FittedTable | FittedWords | None,
    way: ImageInput | None,
    device: torch.device = CPU,
) -> Examples:
    """Rows of a table, arrays, or images: whatever the model takes. Features of images are computed on `device`."""
    if not paths:
        raise ExamplesError("give at least one file to read")
    for path in paths:
        if not path.exists():
            raise ExamplesError(f"there is no file '{path}'")
    images = [path for path in paths if _is_image(path, way)]
    if images:
        return _images(paths, images, spec, preparation, way, device)
    if len(paths) > 1:
        raise ExamplesError(f"'{paths[1]}' is one file too many: several at once are for images, else give one file")
    path = paths[0]
    if not isinstance(preparation, FittedTable) or path.suffix in (".npy", ".npz"):
        return Examples(*from_array(path, spec, preparation, way, device))
    rows, notes = read_rows(path, preparation)
    return Examples(preparation.apply(rows), notes)


def _is_image(path: Path, way: ImageInput | None) -> bool:
    suffix = path.suffix.lower()
    takes_files = way is not None and not way.arrays
    return path.is_dir() or suffix in SUFFIXES or (takes_files and suffix not in ARRAYS)


def _images(
    paths: Sequence[Path],
    images: Sequence[Path],
    spec: ModelSpec,
    preparation: FittedTable | FittedWords | None,
    way: ImageInput | None,
    device: torch.device,
) -> Examples:
    what = f"'{images[0]}' is {'a folder' if images[0].is_dir() else 'an image'}"
    if preparation is not None:
        raise ExamplesError(f"{what}, and this model was trained on rows of a table: give it .csv, .tsv or .parquet")
    if way is None or way.arrays:
        shape = spec.input_shape if way is None else way.arrays
        raise ExamplesError(
            f"{what}, and this model was trained on arrays of shape {shape}, not on image files: give it .npy or .npz"
        )
    for path in paths:
        if path not in images:
            raise ExamplesError(f"'{path}' is no image, and {what}: give images, or one file of arrays")
    found = find_files(paths)
    return Examples(read_files(found, way, device), found.notes, found.paths)


def from_array(
    path: Path,
    spec: ModelSpec,
    preparation: FittedTable | FittedWords | None,
    way: ImageInput | None,
    device: torch.device = CPU,
) -> tuple[Tensor, tuple[str, ...]]:
    """The examples of a file of arrays, prepared, and what must be said of them."""
    if isinstance(preparation, FittedTable):
        raw = fold(path, load_array(path).to(torch.float64), (len(preparation.columns),))
        checked, notes = encode_numbers(raw.numpy(), preparation.columns)
        return preparation.apply(torch.from_numpy(checked)), notes
    x = _from_array(path, spec, way, device)
    strange = ~torch.isfinite(x.flatten(1)).all(dim=1) if x.is_floating_point() else torch.zeros(0)
    if strange.any():
        raise ExamplesError(
            f"'{path}' has a value that is not finite in row {int(strange.int().argmax()) + 1}, counted from 1"
        )
    return (x if preparation is None else preparation.apply(x)), ()


def _from_array(path: Path, spec: ModelSpec, way: ImageInput | None, device: torch.device) -> Tensor:
    values = load_array(path)
    if way is not None and way.arrays and tuple(values.shape[1:]) == way.arrays:
        return read_arrays(_as_float(values), way, device)
    return fold(path, _as_float(values), spec.input_shape)


def _as_float(x: Tensor) -> Tensor:
    return x if x.dtype == torch.uint8 else x.to(torch.get_default_dtype())


def load_array(path: Path) -> Tensor:
    """The numbers of a .npy, .npz (array 'x') or .csv file."""
    try:
        if path.suffix == ".npz":
            arrays = load_npz(path, ("x",))
            if "x" not in arrays:
                raise ExamplesError(f"'{path}' has no array 'x'; it has {', '.join(array_names(path)) or 'none'}")
            values = arrays["x"]
        elif path.suffix == ".npy":
            values = load_npy(path)
        elif path.suffix == ".csv":
            values = _read_csv(path)
        else:
            raise ExamplesError(f"'{path}' is neither .npy, .npz nor .csv")
        return torch.as_tensor(values)
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError, OSError) as error:
        raise ExamplesError(f"'{path}' cannot be read as numbers: {error}") from error


def fold(path: Path, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Examples in the shape that is wanted; rows of numbers are folded into images where they fit."""
    if x.dim() == 2 and x.shape[1] == int(np.prod(shape)):
        x = x.view(-1, *shape)
    if tuple(x.shape[1:]) != shape:
        raise ExamplesError(f"the model takes examples of shape {shape}; '{path}' has {tuple(x.shape[1:])}")
    return x


def _read_csv(path: Path) -> NDArray[Any]:
    first = path.open().readline()
    try:
        [float(cell) for cell in first.split(",")]
        header = 0
    except ValueError:
        header = 1
    return np.loadtxt(path, delimiter=",", skiprows=header, ndmin=2, dtype=np.float32)
