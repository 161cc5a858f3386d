"""Getting a data set from where it is published, into the data folder. Only ever because someone asked for it."""

from __future__ import annotations

import errno
import fnmatch
import os
import shutil
from pathlib import Path

from farfield.errors import UserError
from farfield.tasks.data_folder.checksums import sums, write_record
from farfield.tasks.data_folder.data_set import DataSet, HubRepository, RemoteFile
from farfield.tasks.data_folder.downloading import DownloadFailed, NoSpace, Progress, download, is_full
from farfield.tasks.data_folder.hub import fetch_from_hub
from farfield.tasks.data_folder.importing import Imported, check_free, settle
from farfield.tasks.data_folder.store import VARIABLE, data_folder
from farfield.tasks.unpacking import UNPACKING_ERRORS, PackedError, unpack_tar, unpack_zip


class CannotFetch(UserError):
    """A data set that has to be got by hand."""


def fetch(known: DataSet, *, replace: bool = False, progress: Progress = lambda name, done, total: None) -> Imported:
    """Download what is missing of a data set, check it, and put it in its place whole.

    What is unfinished lies in `.fetch/NAME` of the data folder and is gone on with by the next call.
    """
    if known.fetch is None:
        raise CannotFetch(f"{known.name} cannot be downloaded for you ({known.terms}); {known.get}")
    folder = data_folder()
    place = folder / place_of(known)
    check_free(known, place, replace)
    stage = folder / ".fetch" / known.name
    stage.mkdir(parents=True, exist_ok=True)
    ready = stage / "ready" / place.name
    shutil.rmtree(ready.parent, ignore_errors=True)
    try:
        ready.parent.mkdir()
        origin = _make(known.fetch, stage, ready, progress)
    except OSError as error:
        if not is_full(error):
            raise
        # The download took long and may fit; what is made of it is made again in no time.
        shutil.rmtree(ready.parent, ignore_errors=True)
        raise NoSpace(
            f"the disk of '{folder}' was full before {known.name} was ready; what was downloaded whole is kept in "
            f"'{stage}', the rest is removed; make room and give the same command again, or set {VARIABLE} to a "
            "larger disk"
        ) from error
    try:
        if known.check is not None:
            known.check(ready)
        if not known.looks(ready):
            raise DownloadFailed(f"what was downloaded does not look like {known.name}; it is removed")
    except UserError:
        shutil.rmtree(stage)  # or the next call would find the same again
        raise
    found = sums(ready)
    settle(ready, place, replace)
    # The record comes last: on a full disk, the room for it is the download's.
    shutil.rmtree(stage)
    write_record(place, found, origin)
    if not any(stage.parent.iterdir()):
        stage.parent.rmdir()
    return Imported(known, place, len(found))


def _make(
    source: tuple[RemoteFile, ...] | HubRepository, stage: Path, ready: Path, progress: Progress
) -> tuple[str, ...]:
    """Download to `stage` what is missing there, make of it what goes to the data folder, and say where it is from."""
    if isinstance(source, HubRepository):
        return (fetch_from_hub(source, stage / "hub", ready),)
    _assemble([(file, download(file, stage / file.name, progress)) for file in source], ready)
    return tuple(file.url for file in source)


def place_of(known: DataSet) -> str:
    """The place that the download makes: a folder for several files and for what is unpacked, a file otherwise."""
    if isinstance(known.fetch, HubRepository):
        file = known.fetch.becomes == "npz"
    else:
        assert known.fetch is not None
        file = len(known.fetch) == 1 and known.fetch[0].unpack is None
    place = known.place(file=file)
    assert place is not None
    return place


def _assemble(files: list[tuple[RemoteFile, Path]], ready: Path) -> None:
    if len(files) == 1 and files[0][0].unpack is None:
        _link(files[0][1], ready)
        return
    ready.mkdir()
    for file, path in files:
        if file.unpack is None:
            _link(path, ready / path.name)
        else:
            _unpack(file, path, ready)


def _link(path: Path, to: Path) -> None:
    """A second name, so that the download stays if this is stopped half-way; a copy on a disk that knows no links."""
    try:
        os.link(path, to)
    except OSError:
        shutil.copyfile(path, to)


def _unpack(file: RemoteFile, archive: Path, to: Path) -> None:
    """The wanted members, by their last name: folders inside an archive are of no use here, and may lead astray."""
    unpack = unpack_zip if file.unpack == "zip" else unpack_tar
    try:
        unpack(archive, to, lambda name: fnmatch.fnmatch(name, file.members))
    except PackedError:
        archive.unlink(missing_ok=True)
        raise
    except UNPACKING_ERRORS as error:
        # A disk says why it fails; of an archive whose numbers lead nowhere it says "invalid argument".
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        archive.unlink(missing_ok=True)
        raise DownloadFailed(f"{file.url} is no whole {file.unpack} archive ({error}); it is removed") from error
