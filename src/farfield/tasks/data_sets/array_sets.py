"""Image sets that are arrays: MNIST and its relatives, CIFAR. Read from an .npz, or from the files as published.

    digits = read("rotated-mnist", "mnist")        # x_train [60000, 28, 28], y_train, x_test, y_test: uint8

| name | in the data folder |
|---|---|
| mnist, emnist | `NAME.npz`, or the published idx files (`.gz` or not) |
| cifar10, cifar100 | `NAME.npz`, or the binary version `cifar-10-batches-bin`, `cifar-100-binary` |
| svhn, synth_digits | `NAME.npz`, or the published `.mat` files |
| usps, mnist_m | `NAME.npz` |

The Python version of CIFAR is made of pickles, which can run any code when they are read: it is refused.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farfield.errors import UserError
from farfield.tasks.data_folder.store import locate, require
from farfield.tasks.unpacking import PackedError, array_names, check_gzip, load_npz

Bytes = NDArray[np.uint8]
KEYS = ("x_train", "y_train", "x_test", "y_test")


class DamagedData(UserError):
    """A file of a data set is here, but it is not what it should be."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Images [n, height, width] or [n, height, width, 3] and class numbers [n], all uint8."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes
    #: What a user must know of them: that it is a part of the set only.
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def counts(self) -> dict[str, int]:
        return {"train": len(self.y_train), "test": len(self.y_test)}


@dataclass(frozen=True)
class ArraySet:
    """What an array data set is called, where it may lie, and what its images are."""

    name: str
    places: tuple[str, ...]
    image: tuple[int, ...]
    classes: int
    #: How many training and test images were published.
    sizes: tuple[int, int]
    #: Reads a folder of published files; the folder is the place that was found.
    published: Callable[[Path], Arrays] | None = None
    #: A place whose content is refused, and what to use instead.
    pickled: tuple[str, str] | None = None


def available(name: str) -> bool:
    return locate(*SETS[name].places) is not None


def read(task: str, name: str) -> Arrays:
    """The whole set, checked. Raises MissingData, or DamagedData that names the file and what is wrong in it."""
    known = SETS[name]
    if known.pickled is not None and not available(name) and locate(known.pickled[0]) is not None:
        refused, instead = known.pickled
        raise DamagedData(
            f"'{locate(refused)}' is made of pickles, which are not read because a pickle can run any code; get "
            f"{instead} and bring it in with 'farfield data import'"
        )
    return read_from(name, require(task, *known.places))


def read_from(name: str, path: Path) -> Arrays:
    """As `read`, from a file or folder that was found already."""
    known = SETS[name]
    if path.is_dir():
        if known.published is None:
            raise DamagedData(f"'{path}' is a folder; {name} is read from a file {known.places[0]}")
        arrays = known.published(path)
    else:
        arrays = _from_npz(path)
    checked = Arrays(
        *(
            part
            for split in ("train", "test")
            for part in _checked(known, path, split, getattr(arrays, f"x_{split}"), getattr(arrays, f"y_{split}"))
        )
    )
    return replace(checked, notes=_size_notes(known, path, checked))


def _size_notes(known: ArraySet, path: Path, arrays: Arrays) -> tuple[str, ...]:
    here = tuple(arrays.counts.values())
    if here == known.sizes:
        return ()
    return (
        f"'{path.name}' has {here[0]:,} training and {here[1]:,} test images; published are {known.sizes[0]:,} and "
        f"{known.sizes[1]:,}",
    )


def _from_npz(path: Path) -> Arrays:
    try:
        found = load_npz(path, KEYS)
    except PackedError as error:
        if path.read_bytes()[:6] == b"\x93NUMPY":
            raise DamagedData(f"'{path}' is one array, not an .npz with {', '.join(KEYS)}") from error
        raise DamagedData(
            f"'{path}' is cut short or no .npz file ({error}); get it again, see 'farfield data ls'"
        ) from error
    missing = [key for key in KEYS if key not in found]
    if missing:
        have = ", ".join(array_names(path)) or "none"
        raise DamagedData(f"'{path}' has no array '{missing[0]}'; it has {have}, and needs {', '.join(KEYS)}")
    return Arrays(*(found[key] for key in KEYS))


def _checked(known: ArraySet, path: Path, split: str, x: Bytes, y: NDArray[np.integer]) -> tuple[Bytes, Bytes]:
    """Images and labels of one split in their proper shapes, or a sentence that names the array."""
    shape = "×".join(map(str, known.image))
    if x.ndim == len(known.image) + 2 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.dtype != np.uint8 or x.shape[1:] != known.image:
        raise DamagedData(
            f"'{path}': x_{split} is {x.dtype} of shape {x.shape}; {known.name} has uint8 images of {shape}"
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
        raise DamagedData(
            f"'{path}': y_{split} is {y.dtype} of shape {y.shape}; one class number is needed for each of the {len(x)} "
            f"images of x_{split}"
        )
    if len(y) == 0:
        raise DamagedData(f"'{path}': x_{split} has no images")
    if int(y.min()) < 0 or int(y.max()) >= known.classes:
        row = int(np.flatnonzero((y < 0) | (y >= known.classes))[0])
        raise DamagedData(
            f"'{path}': y_{split} has the label {y[row]} in row {row + 1}; {known.name} has 0 to {known.classes - 1}"
        )
    return x, y.astype(np.uint8)


def find(folder: Path, *names: str) -> Path:
    """The first of these files in a folder, or in its `raw` folder (where torchvision puts them)."""
    for name in names:
        for path in (folder / name, folder / "raw" / name):
            if path.is_file():
                return path
    raise DamagedData(f"'{folder}' has no {' or '.join(names)}; get the set again, see 'farfield data ls'")


def read_idx(path: Path) -> Bytes:
    """An array of bytes in the idx format: two zeros, type 8, the number of dimensions, sizes, then the values."""
    try:
        if path.suffix == ".gz":
            check_gzip(path)
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedData(f"'{path}' is cut short or not gzipped ({error}); get it again") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DamagedData(f"'{path}' is no idx file of bytes: it begins with {content[:4]!r}")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content, ">u4", count=content[3], offset=4).tolist()) if len(content) >= start else ()
    size = int(np.prod(shape, dtype=np.int64))
    if not shape or len(content) != start + size:
        raise DamagedData(f"'{path}' is cut short: {len(content)} bytes, where its header promises {start + size}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _idx_set(folder: Path, train: str, test: str) -> Arrays:
    def part(split: str, kind: str) -> Bytes:
        return read_idx(find(folder, f"{split}-{kind}-ubyte.gz", f"{split}-{kind}-ubyte"))

    return Arrays(
        part(train, "images-idx3"), part(train, "labels-idx1"), part(test, "images-idx3"), part(test, "labels-idx1")
    )


def _mnist(folder: Path) -> Arrays:
    return _idx_set(folder, "train", "t10k")


def _emnist(folder: Path) -> Arrays:
    # EMNIST's idx files hold each image with rows and columns exchanged.
    raw = _idx_set(folder, "emnist-mnist-train", "emnist-mnist-test")
    return Arrays(raw.x_train.transpose(0, 2, 1), raw.y_train, raw.x_test.transpose(0, 2, 1), raw.y_test)


def _records(path: Path, labels: int) -> tuple[Bytes, Bytes]:
    """CIFAR's binary version: label bytes (the last counts), then 3 × 32 × 32 pixels, plane by plane."""
    content = np.fromfile(path, np.uint8)
    length = labels + 3 * 32 * 32
    if len(content) == 0 or len(content) % length:
        raise DamagedData(f"'{path}' is cut short: {len(content)} bytes are no whole number of {length}-byte records")
    rows = content.reshape(-1, length)
    return rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, labels - 1]


def _cifar10(folder: Path) -> Arrays:
    batches = [_records(find(folder, f"data_batch_{number}.bin"), 1) for number in range(1, 6)]
    test = _records(find(folder, "test_batch.bin"), 1)
    return Arrays(np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches]), *test)


def _cifar100(folder: Path) -> Arrays:
    return Arrays(*_records(find(folder, "train.bin"), 2), *_records(find(folder, "test.bin"), 2))


def _mat_set(folder: Path, prefix: str) -> Arrays:
    """The published layout of SVHN: `X` [32, 32, 3, n] and `y` [n, 1], in which 10 means the digit 0."""
    from scipy.io import loadmat  # here, because it takes time that other sets need not pay

    parts = []
    for split in ("train", "test"):
        path = find(folder, f"{prefix}{split}_32x32.mat")
        try:
            content = loadmat(path, variable_names=("X", "y"))
            parts += [np.moveaxis(content["X"], -1, 0), content["y"].reshape(-1).astype(np.int64) % 10]
        except (KeyError, ValueError, TypeError, OSError, EOFError, NotImplementedError, zlib.error) as error:
            raise DamagedData(f"'{path}' is cut short or has no X and y ({error}); get it again") from error
    return Arrays(*parts)


def _svhn(folder: Path) -> Arrays:
    return _mat_set(folder, "")


def _synth_digits(folder: Path) -> Arrays:
    return _mat_set(folder, "synth_")


_BINARY = "the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"
SETS: dict[str, ArraySet] = {
    known.name: known
    for known in (
        ArraySet("mnist", ("mnist.npz", "MNIST"), (28, 28), 10, (60_000, 10_000), _mnist),
        ArraySet("emnist", ("emnist.npz", "EMNIST"), (28, 28), 10, (60_000, 10_000), _emnist),
        ArraySet("usps", ("usps.npz",), (16, 16), 10, (7_291, 2_007)),
        ArraySet("mnist_m", ("mnist_m.npz",), (32, 32, 3), 10, (59_001, 9_001)),
        ArraySet("svhn", ("svhn.npz", "SVHN"), (32, 32, 3), 10, (73_257, 26_032), _svhn),
        ArraySet("synth_digits", ("synth_digits.npz", "SynthDigits"), (32, 32, 3), 10, (479_400, 9_553), _synth_digits),
        ArraySet(
            "cifar10",
            ("cifar10.npz", "cifar-10-batches-bin"),
            (32, 32, 3),
            10,
            (50_000, 10_000),
            _cifar10,
            ("cifar-10-batches-py", f"{_BINARY} (folder cifar-10-batches-bin)"),
        ),
        ArraySet(
            "cifar100",
            ("cifar100.npz", "cifar-100-binary"),
            (32, 32, 3),
            100,
            (50_000, 10_000),
            _cifar100,
            ("cifar-100-python", f"{_BINARY} (folder cifar-100-binary)"),
        ),
    )
}
