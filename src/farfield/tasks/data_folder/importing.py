"""Bringing data into the data folder: recognised by its layout, checked, copied or linked whole, with its checksums."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from farfield.errors import UserError
from farfield.tasks.data_folder.catalogue import CATALOGUE, data_set
from farfield.tasks.data_folder.checksums import record_of, sums, write_record
from farfield.tasks.data_folder.data_set import DataSet
from farfield.tasks.data_folder.downloading import NoSpace, is_full
from farfield.tasks.data_folder.store import data_folder
from farfield.tasks.user_data.table_file import TEXT


class NotRecognised(UserError):
    """A path that looks like no known data set."""


class AlreadyHere(UserError):
    """The data folder has this data set already."""


@dataclass(frozen=True)
class Imported:
    known: DataSet
    path: Path
    files: int


def recognise(path: Path) -> DataSet:
    """The data set that a file or folder looks like."""
    if path.name in ("cifar-10-batches-py", "cifar-100-python"):
        name = "cifar10" if "10-" in path.name else "cifar100"
        raise NotRecognised(
            f"'{path}' is the Python version of CIFAR, made of pickles that can run any code when read; import the "
            f"binary version instead, or get it with 'farfield data fetch {name}'"
        )
    fitting = [known for known in CATALOGUE.values() if known.looks(path)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        choice = " or ".join(f"--as {known.name}" for known in fitting)
        raise NotRecognised(f"'{path}' looks like more than one data set; say which with {choice}")
    raise NotRecognised(
        f"'{path}' looks like none of the known data sets; 'farfield data ls' shows them, --as NAME says which it is, "
        "and data of your own needs no import: give it to 'farfield bench --data'"
    )


def import_path(path: Path, name: str | None = None, *, link: bool = False, replace: bool = False) -> Imported:
    """Copy (or link) a file or folder to its place in the data folder, whole or not at all, with its checksums."""
    path = path.expanduser()
    if not path.exists():
        raise NotRecognised(f"there is no file or folder '{path}' to import")
    known = data_set(name) if name is not None else recognise(path)
    place = place_for(known, path)
    check_free(known, place, replace)
    if known.check is not None:
        known.check(path)
    elif not known.looks(path):
        raise NotRecognised(f"'{path}' does not look like {known.name} ({known.get})")
    place.parent.mkdir(parents=True, exist_ok=True)
    with staging(place.parent) as stage:
        copy = stage / place.name
        _bring(path, copy, link)
        found = sums(copy)
        settle(copy, place, replace)
    write_record(place, found)
    return Imported(known, place, len(found))


def place_for(known: DataSet, path: Path) -> Path:
    """Where it goes: the set's first place that is a file for a file, a folder for a folder."""
    file = path.is_file()
    place = known.place(file=file)
    if place is None:
        what = "a folder" if file else "a file"
        raise NotRecognised(f"{known.name} is {what} ({known.places[0]}), and '{path}' is not")
    kinds = TEXT if place.endswith(".csv") else (Path(place).suffix,)
    if file and path.suffix.lower() not in kinds:
        raise NotRecognised(f"{known.name} is kept as {place}, and '{path}' is another kind of file; save it as such")
    return data_folder() / place


def check_free(known: DataSet, place: Path, replace: bool) -> None:
    """Refuse to put a data set beside one that is here; with `replace`, only beside one that would be read first."""
    here = known.here()
    if not replace and (here is not None or place.is_symlink()):
        raise AlreadyHere(
            f"{known.name} is here already, in '{here or place}'; add --replace to put the new one in its place"
        )
    if here is not None and here != place:
        raise AlreadyHere(f"{known.name} is here as '{here}', which is read before '{place}'; remove it first")


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A folder on the same disk for what is not whole yet; it goes away whatever happens."""
    stage = Path(tempfile.mkdtemp(prefix=".import-", dir=folder))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def settle(ready: Path, place: Path, replace: bool) -> None:
    """Put what is ready in its place in one step; what was there before is kept until then."""
    if not replace or not (place.exists() or place.is_symlink()):
        os.replace(ready, place)
        return
    record_of(place).unlink(missing_ok=True)
    old = ready.with_name("old")
    os.replace(place, old)
    try:
        os.replace(ready, place)
    except OSError:
        os.replace(old, place)
        raise


def _bring(path: Path, copy: Path, link: bool) -> None:
    if link:
        copy.symlink_to(path.resolve())
        return
    try:
        if path.is_dir():
            shutil.copytree(path, copy, copy_function=shutil.copy2)
        else:
            shutil.copy2(path, copy)
    except (OSError, shutil.Error) as error:
        # A folder's errors come as a list of (from, to, why).
        reasons = str(error.args[0]) if isinstance(error, shutil.Error) else str(error)
        if is_full(error) or os.strerror(errno.ENOSPC) in reasons:
            raise NoSpace(
                f"the disk of '{copy.parent.parent}' is full, and nothing of '{path}' was kept; make room, or use "
                "--link to leave the data where it is"
            ) from error
        raise
