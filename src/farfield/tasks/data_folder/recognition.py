"""How data sets look on a disk: what tells one from the other, and how many examples there are."""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from farfield.tasks.data_sets.array_sets import DamagedData, read_from
from farfield.tasks.data_sets.image_sets import PublicSet, list_in
from farfield.tasks.images.image_set import ImageError
from farfield.tasks.images.layouts import find_domains
from farfield.tasks.user_data.table_file import TEXT, need_columns, read_frame

Looks = Callable[[Path], bool]
Counts = Callable[[Path], dict[str, int]]
#: What may lie beside the one folder that holds the domains of an image set: lists, notes, a licence.
_NOTES = frozenset({"", ".txt", ".csv", ".md", ".json"})


def named(*names: str) -> Looks:
    """A file of one of these names, in any case."""
    wanted = {name.lower() for name in names}
    return lambda path: path.is_file() and path.name.lower() in wanted


def table_with(*columns: str) -> Looks:
    """A text file of any name whose first line names these columns."""

    def looks(path: Path) -> bool:
        if not path.is_file() or path.suffix.lower() not in TEXT:
            return False
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            header = file.readline(1 << 16)
        return set(columns) <= {name.strip().strip('"') for name in re.split(r"[,;\t|]", header)}

    return looks


def columns_checked(name: str, *columns: str) -> Callable[[Path], None]:
    """Refuse a table without one of these columns, by its name."""
    return lambda path: need_columns(read_frame(path), columns, f"data set '{name}'")


def folder_with(*files: str) -> Looks:
    """A folder (or its `raw` folder) that holds each of these; 'a|b' means one of the two."""

    def looks(path: Path) -> bool:
        return path.is_dir() and all(
            any((path / name).exists() or (path / "raw" / name).exists() for name in choice.split("|"))
            for choice in files
        )

    return looks


def either(*looks: Looks) -> Looks:
    return lambda path: any(look(path) for look in looks)


def array_counts(name: str) -> Counts:
    """Training and test images. An .npz is counted by the heads of its arrays, without reading them."""

    def count(path: Path) -> dict[str, int]:
        if path.is_file():
            return {split: _length(path, f"y_{split}") for split in ("train", "test")}
        return read_from(name, path).counts

    return count


def _length(path: Path, key: str) -> int:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            return int(read(file)[0][0])
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedData(f"'{path}' is cut short, or has no array '{key}' ({error}); get it again") from error


def array_check(name: str) -> Callable[[Path], None]:
    """Reads the set once as a task would, so that a wrong file is refused when it is brought in."""

    def check(path: Path) -> None:
        read_from(name, path)

    return check


def image_folder(public: PublicSet) -> Looks:
    """A folder with all domains of a set, in any spelling, perhaps wrapped in another that holds nothing else.

    Told by names alone: any folder may be asked about, also one with a million files.
    """

    def looks(path: Path) -> bool:
        if not path.is_dir():
            return False
        try:
            top, found = find_domains(path, public.domains)
            return found == tuple(public.counts) and _wrapped(path, top)
        except (OSError, ImageError):  # a folder that may not be read, or a link in a circle: no data set
            return False

    return looks


def _wrapped(path: Path, top: Path) -> bool:
    """Whether the folders from `path` to `top` hold just the next one: a folder of downloads is no data set."""
    while top != path:
        beside = [entry for entry in top.parent.iterdir() if entry != top]
        if not all(_notes(entry) for entry in beside):
            return False
        top = top.parent
    return True


def _notes(path: Path) -> bool:
    """Whether this is a text, or a folder of texts, or hidden, as a file browser's own files are."""
    if path.name.startswith((".", "__")):
        return True
    if path.is_dir():
        return all(entry.is_file() and entry.suffix.lower() in _NOTES for entry in path.iterdir())
    return path.suffix.lower() in _NOTES


def image_counts(public: PublicSet) -> Counts:
    """Images of each domain, as the task would list them."""

    def count(path: Path) -> dict[str, int]:
        images = list_in(path, public)
        return dict(zip(images.domains, images.sizes, strict=True))

    return count


def image_check(public: PublicSet) -> Callable[[Path], None]:
    """Lists the images once as a task would, so that a folder that cannot be used is refused when it is brought in."""

    def check(path: Path) -> None:
        list_in(path, public)

    return check


def rows_of(*tables: str) -> Counts:
    """Data rows of a table (a file itself, or tables in a folder), by its name; line by line, without a parser."""

    def count(path: Path) -> dict[str, int]:
        if path.is_file():
            return {"rows": _lines(path)}
        return {table: _lines(found) for table in tables if (found := _table(path, table)) is not None}

    return count


def _table(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / f"{name}.csv", folder / f"{name}.csv.gz") if p.is_file()), None)


def _lines(path: Path) -> int:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            return max(0, sum(1 for line in file if line.strip()) - 1)
    except (OSError, EOFError) as error:
        raise DamagedData(f"'{path}' is cut short or damaged ({error}); get it again") from error
