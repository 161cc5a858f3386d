"""One file over HTTP(S): resumed where it stopped, checked, and under its name only when it is whole.

    download(RemoteFile("https://…/mnist.npz", "sha256:731c…"), Path("data/.fetch/mnist/mnist.npz"))

Bytes go to `NAME.part`. A second call asks for the rest with a Range request, provided that the server still has the
same file (its ETag is kept beside the part). A part with a wrong checksum is removed; so is one that fills the disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from farfield.errors import UserError
from farfield.tasks.data_folder.checksums import WrongChecksum, digest
from farfield.tasks.data_folder.data_set import RemoteFile

#: Called after every block: bytes that are here, and bytes in all where the server says so.
Progress = Callable[[str, int, int | None], None]
ATTEMPTS = 4
TIMEOUT = 60.0
#: Seconds before another attempt, times the number of attempts made.
PAUSE = 1.0
_BLOCK = 1 << 18


class DownloadFailed(UserError):
    """A file could not be had; what is here of it is kept where it can be resumed."""


class NoSpace(UserError):
    """The disk is full, or would be."""


def is_full(error: OSError) -> bool:
    """Whether a write failed because the disk, or the user's share of it, has no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class _Stopped(Exception):
    """The connection ended too early; another attempt may go on from here."""


def download(file: RemoteFile, to: Path, progress: Progress = lambda name, done, total: None) -> Path:
    """Get `file` to the path `to`, which appears only when it is complete and has the right checksum."""
    if to.exists():
        return to
    if not file.url.startswith(("http://", "https://")):
        raise DownloadFailed(f"'{file.url}' is neither http nor https")
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f"{to.name}.part")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _receive(file, part, progress)
            break
        except _Stopped as stop:
            if attempt == ATTEMPTS:
                kept = part.stat().st_size if part.exists() else 0
                raise DownloadFailed(
                    f"{file.url}: {stop}; {kept:,} bytes are kept, give the same command again to go on from there"
                ) from stop
            time.sleep(PAUSE * attempt)
    _verify(file, part)
    _tag(part).unlink(missing_ok=True)
    os.replace(part, to)
    return to


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.etag")


def _receive(file: RemoteFile, part: Path, progress: Progress) -> None:
    """Ask for what is missing and append it."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "farfield", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if _tag(part).is_file():
            headers["If-Range"] = _tag(part).read_text()
    try:
        with urlopen(Request(file.url, headers=headers), timeout=TIMEOUT) as answer:
            begin, total = _extent(answer, have)
            _keep_tag(part, answer.headers.get("ETag"))
            _check_space(part.parent, file, begin, total)
            done = _append(answer, part, begin, total, file.name, progress)
    except HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
            return  # there is nothing after what we have: it is whole
        if error.code == 416 or error.code >= 500:
            if error.code == 416:
                part.unlink(missing_ok=True)
            raise _Stopped(f"the server answered {error.code} {error.reason}") from error
        raise DownloadFailed(f"{file.url}: the server answered {error.code} {error.reason}") from error
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        raise _Stopped(f"the connection failed ({getattr(error, 'reason', None) or error})") from error
    if total is not None and done < total:
        raise _Stopped(f"the connection ended after {done:,} of {total:,} bytes")


def _extent(answer: Any, have: int) -> tuple[int, int | None]:
    """Where the answer's bytes begin in the file, and how long the file is."""
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        span, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if span.partition("-")[0] == str(have):
            return have, int(total) if total.isdigit() else None
        raise _Stopped(f"the server sent other bytes ({span}) than asked for")
    return 0, int(length) if length is not None else None


def _keep_tag(part: Path, tag: str | None) -> None:
    # A weak tag does not promise the same bytes, so it cannot be resumed by.
    if tag is not None and not tag.startswith("W/"):
        _tag(part).write_text(tag)
    else:
        _tag(part).unlink(missing_ok=True)


def _check_space(folder: Path, file: RemoteFile, begin: int, total: int | None) -> None:
    free = shutil.disk_usage(folder).free
    if total is not None and total - begin > free:
        raise NoSpace(
            f"{file.name} needs {total - begin:,} more bytes and '{folder}' has {free:,} free; make room, or set "
            "FARFIELD_DATA to a larger disk"
        )


def _append(answer: Any, part: Path, begin: int, total: int | None, name: str, progress: Progress) -> int:
    done = begin
    try:
        with open(part, "r+b" if begin else "wb") as out:
            out.seek(begin)
            while block := answer.read(_BLOCK):
                out.write(block)
                done += len(block)
                progress(name, done, total)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        if not is_full(error):
            raise
        part.unlink(missing_ok=True)
        _tag(part).unlink(missing_ok=True)
        raise NoSpace(
            f"the disk of '{part.parent}' was full after {done:,} bytes of {name}; what was there of it is removed; "
            "make room and give the same command again"
        ) from error
    return done


def _verify(file: RemoteFile, part: Path) -> None:
    if file.checksum is None:
        return
    kind, _, expected = file.checksum.partition(":")
    found = digest(part, kind)
    if found != expected.lower():
        part.unlink()
        _tag(part).unlink(missing_ok=True)
        raise WrongChecksum(
            f"{file.url} has the {kind} {found}, not the published {expected}: it is damaged or was changed; what came "
            "is removed"
        )
