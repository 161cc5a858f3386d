"""Large arrays that can be made again: written once, whole or not at all, and read through the page cache.

    x = cached_array("pixels", key, shape=(n, 3, 64, 64), dtype="uint8", make=chunks)

`make` gives the rows in order, some at a time. They go to a temporary name that becomes the real one when all are
there, so a finished name is a complete array. What a killed build left behind is removed by the next build.

A file ends with the sha256 of all that stands before it, behind the array, where readers of .npy files do not look. It
is compared once per process, before the array is used. Files of older versions have none, and are used unchecked.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from farfield.errors import UserError
from farfield.tasks.data_folder.store import cache_folder

PARTIAL = ".partial"
#: What the last bytes of a checked file begin with; the digest follows.
_MARK = b"farfield-sha256:"
_END = len(_MARK) + hashlib.sha256().digest_size
#: Files that were looked at in this process, by what the file system says of them: whether they have a checksum.
_whole: dict[tuple[str, int, int, int], bool] = {}


class CacheError(UserError):
    """The cache cannot be written."""


def cached_array(
    kind: str,
    key: str,
    *,
    shape: tuple[int, ...],
    dtype: str,
    make: Callable[[], Iterable[NDArray[Any]]],
) -> torch.Tensor:
    """The array of this key as a tensor over a read-only memory map; made first if it is not there."""
    path = cache_folder() / kind / f"{key}.npy"
    if not path.exists():
        with _writing(path):
            if not path.exists():  # another process may have made it while this one waited
                _write(path, shape, np.dtype(dtype), make)
    return _open(path, shape, np.dtype(dtype))


def read_small(kind: str, key: str) -> NDArray[Any] | None:
    """A small array that `write_small` has put there."""
    path = cache_folder() / kind / f"{key}.npy"
    try:
        check_whole(path)
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError):  # a damaged one is made again, as a missing one is
        return None


def write_small(kind: str, key: str, values: NDArray[Any]) -> None:
    path = cache_folder() / kind / f"{key}.npy"
    with _writing(path):
        _write(path, values.shape, values.dtype, lambda: [values])


def check_whole(path: Path) -> bool:
    """Return whether a file has a checksum. Raises CacheError where it has one and is not as it was written."""
    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        known = (str(path), about.st_ino, about.st_size, about.st_mtime_ns)
        if known in _whole:
            return _whole[known]
        hashed, left = hashlib.sha256(), about.st_size - _END
        file.seek(max(0, left))
        end = file.read(_END)
        marked = end.startswith(_MARK)
        if marked:
            file.seek(0)
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                hashed.update(block)
                left -= len(block)
            if hashed.digest() != end[len(_MARK) :]:
                raise CacheError(
                    f"the cache file '{path}' is damaged: its content does not match its checksum; delete it, and it "
                    "will be made again"
                )
    _whole[known] = marked
    return marked


def _open(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    try:
        marked = check_whole(path)
        array = npy.open_memmap(path, mode="r")
    except CacheError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise CacheError(
            f"the cache file '{path}' is damaged ({error}); delete it, and it will be made again"
        ) from error
    if array.shape != shape or array.dtype != dtype:
        raise CacheError(f"the cache file '{path}' holds something else; delete it, and it will be made again")
    size = array.offset + array.nbytes
    if path.stat().st_size != size + marked * _END:
        raise CacheError(f"the cache file '{path}' is damaged: its length is wrong; delete it to have it made again")
    with warnings.catch_warnings():
        # The map is read-only on purpose: a task's tensors are shared by all who use them and are never written to.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def _write(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[[], Iterable[NDArray[Any]]]
) -> None:
    partial = path.with_name(f"{path.stem}.{os.getpid()}{PARTIAL}")
    _check_space(path, prod(shape) * dtype.itemsize)
    try:
        # Plain writes, not a writable map: a full disk then is an error that can be told, not a crash.
        with open(partial, "wb") as file:
            header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            begin = io.BytesIO()
            npy.write_array_header_1_0(begin, header)
            hashed = hashlib.sha256(begin.getvalue())
            file.write(begin.getvalue())
            rows = 0
            for chunk in make():
                assert chunk.dtype == dtype, f"{chunk.dtype} instead of {dtype}"
                _put(file, chunk)
                hashed.update(np.ascontiguousarray(chunk).data)
                rows += len(chunk)
            assert rows == shape[0], f"{rows} rows instead of {shape[0]}"
            file.write(_MARK + hashed.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CacheError(_full(path, prod(shape) * dtype.itemsize)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def _put(file: Any, chunk: NDArray[Any]) -> None:
    file.write(np.ascontiguousarray(chunk).data)


def _check_space(path: Path, needed: int) -> None:
    if shutil.disk_usage(path.parent).free < needed:
        raise CacheError(_full(path, needed))


def _full(path: Path, needed: int) -> str:
    return (
        f"the disk of '{path.parent}' is full: {needed / 2**20:.0f} MB are needed for this cache, and nothing "
        "was kept of it; make room, or set FARFIELD_CACHE to a folder on another disk"
    )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Be the only one to make this array; others wait. The lock goes with its process, however that ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(path.with_suffix(".lock"), wait=True)
    except OSError as error:
        raise CacheError(
            f"the cache folder '{path.parent}' cannot be written ({error.strerror}); set FARFIELD_CACHE to another"
        ) from error
    assert lock is not None
    with lock:
        try:
            _remove_leftovers(path.parent, own=path.stem)
            yield
        finally:
            path.with_suffix(".lock").unlink(missing_ok=True)


def _lock(path: Path, wait: bool) -> IO[bytes] | None:
    """The lock file, locked; None if another holds it and we do not wait."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 - held by the caller
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before has removed it: a lock on a file that is gone keeps nobody out.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        file.close()


def _remove_leftovers(folder: Path, own: str) -> None:
    """Remove what killed builds left: a partial file whose lock nobody holds has no one to finish it."""
    for partial in folder.glob(f"*{PARTIAL}"):
        key = partial.name.split(".")[0]
        lock = None if key == own else _lock(folder / f"{key}.lock", wait=False)
        if key == own or lock is not None:
            partial.unlink(missing_ok=True)
        if lock is not None:
            (folder / f"{key}.lock").unlink(missing_ok=True)
            lock.close()
