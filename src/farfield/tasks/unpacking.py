"""Limits for what is unpacked: a file of kilobytes can hold gigabytes, and a name can lead out of a folder.

What a compressed file says of its size is compared with these limits before anything is read into memory. Up to
`FREE` bytes anything goes; above that a file may grow to `RATIO` times its size, and never beyond `MOST_BYTES`.
"""

from __future__ import annotations

import gzip
import math
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from farfield.errors import UserError

#: Bytes that any file may unpack to, and how many times its own size a file may unpack to beyond that.
FREE, RATIO = 256 * 2**20, 200
#: Bytes that no file may exceed when it is unpacked.
MOST_BYTES = 64 * 2**30
#: Files in one archive.
MOST_FILES = 1_000_000
#: Cells of a sheet or of a Parquet file: about 8 bytes each in memory, and more as text.
MOST_CELLS = 500_000_000
#: What the readers of compressed files raise for files that are damaged, or that somebody made to look so.
UNPACKING_ERRORS = (
    OSError, EOFError, ValueError, KeyError, IndexError, TypeError, RuntimeError, NotImplementedError, OverflowError,
    AttributeError, SyntaxError, AssertionError, RecursionError, zlib.error, struct.error, zipfile.BadZipFile,
    tarfile.TarError,
)  # fmt: skip
_BLOCK = 1 << 20
#: A reference to a cell, or the number of a row, in the XML of a sheet.
_CELL = re.compile(rb'\sr="([A-Z]*)(\d+)"')


class PackedError(UserError):
    """A compressed file that cannot be unpacked, or is larger than anything that is unpacked."""


def check_size(path: Path, unpacked: int) -> None:
    """Refuse a file that would unpack to more than the limits allow."""
    packed = max(1, path.stat().st_size)
    if unpacked > MOST_BYTES or unpacked > max(FREE, RATIO * packed):
        raise PackedError(
            f"'{path.name}' has {packed / 1e6:.1f} MB and unpacks to {unpacked / 1e6:,.0f} MB; at most "
            f"{min(MOST_BYTES, max(FREE, RATIO * packed)) / 1e6:,.0f} MB are unpacked from it, so check what it is and "
            "unpack it by hand"
        )


def check_gzip(path: Path) -> None:
    """Refuse a gzipped file that unpacks to too much. It is unpacked for that, and nothing of it is kept."""
    size = 0
    with gzip.open(path) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            check_size(path, size)


def check_zip(path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of a zip file. Refuses one that says that it holds too much."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if len(members) > MOST_FILES:
        raise PackedError(f"'{path.name}' holds {len(members):,} files, and at most {MOST_FILES:,} are unpacked")
    # zipfile itself reads no more of a member than it says here.
    check_size(path, sum(member.file_size for member in members))
    return members


def unpack_zip(path: Path, to: Path, wanted: Any) -> None:
    """Unpack the members that are wanted, by their last name, into a folder."""
    members = check_zip(path)
    with zipfile.ZipFile(path) as archive:
        for member in members:
            if not member.is_dir() and wanted(member.filename) and not _is_link(member):
                with archive.open(member) as source:
                    _store(source, to, member.filename)


def _is_link(member: zipfile.ZipInfo) -> bool:
    return (member.external_attr >> 16) & 0o170000 == 0o120000


def unpack_tar(path: Path, to: Path, wanted: Any) -> None:
    """Unpack the plain files that are wanted, by their last name, into a folder: no links, no devices."""
    size = 0
    with tarfile.open(path) as archive:
        for number, member in enumerate(archive, 1):
            size += max(0, member.size)
            if number > MOST_FILES:
                raise PackedError(f"'{path.name}' holds more than {MOST_FILES:,} files, which are not unpacked")
            check_size(path, size)
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None and wanted(member.name):
                with content:
                    _store(content, to, member.name)


def _store(source: IO[bytes], to: Path, name: str) -> None:
    """Write a member to a folder under its last name: folders inside an archive may lead astray."""
    last = PurePosixPath(name.replace("\\", "/")).name
    if last in ("", ".", "..") or "\0" in last or len(last.encode("utf-8", "replace")) > 255:
        raise PackedError(f"an archive has a file with the name {name[:100]!r}, which is not unpacked")
    with open(to / last, "wb") as out:
        shutil.copyfileobj(source, out)


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an .npz file."""
    try:
        return [_array_name(member.filename) for member in check_zip(path)]
    except PackedError:
        raise
    except UNPACKING_ERRORS as error:
        raise PackedError(f"'{path}' cannot be read as arrays: {_said(error)}") from error


def load_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file by name: all, or those of `names` that are there. No pickles are read."""
    try:
        found = {}
        members = check_zip(path)
        with zipfile.ZipFile(path) as archive:
            for member in members:
                name = _array_name(member.filename)
                if names is None or name in names:
                    with archive.open(member) as file:
                        _check_header(path, file, member.file_size)
                    with archive.open(member) as file:
                        found[name] = npy.read_array(file, allow_pickle=False)
        return found
    except PackedError:
        raise
    except UNPACKING_ERRORS as error:
        raise PackedError(f"'{path}' cannot be read as arrays: {_said(error)}") from error


def load_npy(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file. No pickles are read."""
    try:
        with open(path, "rb") as file:
            _check_header(path, file, path.stat().st_size)
            file.seek(0)
            return npy.read_array(file, allow_pickle=False)
    except PackedError:
        raise
    except UNPACKING_ERRORS as error:
        raise PackedError(f"'{path}' cannot be read as an array: {_said(error)}") from error


def _check_header(path: Path, file: IO[bytes], size: int) -> None:
    """Refuse an array whose header promises more bytes than there are: NumPy makes room for what the header says."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise PackedError(f"'{path}' holds an array in format {version}, which is not read")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise PackedError(f"'{path}' holds an array of Python objects, which is not read: it could run any code")
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize > size:
        raise PackedError(f"'{path}' is damaged: an array of shape {shape} has more bytes than the file")


def _array_name(name: str) -> str:
    return name.removesuffix(".npy")


def check_workbook(path: Path) -> None:
    """Refuse an Excel workbook that unpacks to too much, or whose sheets name cells far out, which would be filled."""
    for member in check_zip(path):
        if not member.filename.startswith("xl/worksheets/") or not member.filename.endswith(".xml"):
            continue
        rows = columns = 0
        with zipfile.ZipFile(path) as book, book.open(member) as sheet:
            left = b""
            while block := sheet.read(_BLOCK):
                for letters, digits in _CELL.findall(left + block):
                    rows = max(rows, int(digits[:12]))
                    columns = max(columns, _column(letters))
                left = block[-40:]
        if rows > 2**20 or columns > 2**14 or rows * max(1, columns) > MOST_CELLS:
            raise PackedError(
                f"'{path.name}' has a sheet of {rows:,} rows and {columns:,} columns, and at most 1,048,576 rows, "
                f"16,384 columns and {MOST_CELLS:,} cells are read; save the part that is used as CSV"
            )


def _column(letters: bytes) -> int:
    number = 0
    for letter in letters[:8]:
        number = 26 * number + letter - 64
    return number


def check_parquet(path: Path) -> None:
    """Refuse a Parquet file that says that it holds too many rows or bytes."""
    import pyarrow.parquet as pq

    about = pq.ParquetFile(path).metadata
    groups: Iterable[Any] = (about.row_group(number) for number in range(about.num_row_groups))
    size = sum(max(0, group.total_byte_size) for group in groups)
    if about.num_rows * max(1, about.num_columns) > MOST_CELLS or size > MOST_BYTES:
        raise PackedError(
            f"'{path.name}' says that it holds {about.num_rows:,} rows of {about.num_columns:,} columns and {size:,} "
            f"bytes; at most {MOST_CELLS:,} cells are read"
        )


def _said(error: BaseException) -> str:
    """What a reader said. Of what is no archive NumPy says that it may be a pickle, which nobody should try."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return "it is no array" if "unsafely" in text or "allow_pickle" in text else text
