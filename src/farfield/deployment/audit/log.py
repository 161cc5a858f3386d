"""An append-only log in which every entry has the hash of the entry before it.

An entry is one line of JSON. Its hash is the SHA-256 of the line without its end. The first entry has a random number
in place of a hash, so that two logs never have the same chain. Several processes may append: each takes the lock, reads
the last line and writes its own, and returns when the line is on the disk.

A folder holds `audit.jsonl`, a file with the hash of the last entry, and a lock. If `audit.jsonl` is moved away
(rotated), the chain goes on in a new file. If a kill cuts a line, the line stays, and the next entry says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: The folder of an audit log, in the output folder of a server and in the state folder of a site.
FOLDER = "audit"
FILE, HEAD, LOCK = "audit.jsonl", "head", "lock"
#: The kinds of entries that the log writes about itself: its start, a new file, and a line that a kill has cut.
OPENED, CONTINUED, RECOVERED = "opened", "continued", "recovered"
#: The most bytes of an entry.
LONGEST_ENTRY = 1 << 16
#: The bytes at the end of a file in which the last entry usually is.
USUAL_END = 4096


class AuditError(RuntimeError):
    """An audit log that cannot be written."""


@dataclass(frozen=True)
class Head:
    """The last entry of a log: its number and its hash."""

    number: int
    sha256: str

    def to_line(self) -> bytes:
        """Return the head in a fixed number of bytes, so that it can be written in place."""
        return f"{self.number:020d} {self.sha256}\n".encode()

    @classmethod
    def read(cls, path: Path) -> Head | None:
        """Return the head that was written last; None if there is none, or none that can be read."""
        try:
            number, sha256 = path.read_text("ascii", "replace").split()
            return cls(int(number), sha256)
        except (OSError, ValueError):
            return None


def sha256_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


class AuditLog:
    """Appends to the log in a folder. `about` goes into the first entry: whose log it is."""

    def __init__(self, parent: Path, **about: Any) -> None:
        self.folder, self._about = parent / FOLDER, about

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Append entries and return when they are on the disk. Raises AuditError if that cannot be."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._alone():
                self._append(entries)
        except OSError as error:
            why = error.strerror or error
            raise AuditError(f"the audit log in '{self.folder}' cannot be written: {why}") from error

    @property
    def head(self) -> Head | None:
        return Head.read(self.folder / HEAD)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _append(self, entries: tuple[Mapping[str, Any], ...]) -> None:
        path = self.folder / FILE
        begun = path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            last, torn, ended = _end_of(descriptor)
            head, own = self._where(last, torn)
            lines: list[bytes] = []
            for entry in (*own, *entries):
                line = _line(head, entry)
                head = Head(head.number + 1, sha256_of(line))
                lines.append(line + b"\n")
            data = (b"" if ended else b"\n") + b"".join(lines)
            while data:  # a disk that is nearly full takes a part, and refuses the rest
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not begun:
            _sync(self.folder)
        self._write_head(head)

    def _where(self, last: bytes, torn: list[bytes]) -> tuple[Head, list[dict[str, Any]]]:
        """Return the entry to go on from, and what the log has to say about itself first."""
        own: list[dict[str, Any]] = []
        if last:
            head = Head(int(json.loads(last)["n"]), sha256_of(last))
        else:
            known = self.head
            if known is None:
                head, own = Head(0, secrets.token_hex(32)), [{"kind": OPENED, **self._about}]
            else:
                head, own = known, [{"kind": CONTINUED, **self._about}]
        if torn:
            own.append({"kind": RECOVERED, "torn": [sha256_of(piece) for piece in torn]})
        return head, own

    def _write_head(self, head: Head) -> None:
        descriptor = os.open(self.folder / HEAD, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, head.to_line(), 0)
        finally:
            os.close(descriptor)


def now() -> str:
    """Return the time for an entry, in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _line(head: Head, entry: Mapping[str, Any]) -> bytes:
    whole = {"n": head.number + 1, "time": now(), **entry, "previous": head.sha256}
    line = json.dumps(whole, separators=(",", ":")).encode()
    if len(line) > LONGEST_ENTRY:
        raise AuditError(f"an entry of the audit log would have {len(line)} bytes, and {LONGEST_ENTRY} are allowed")
    return line


def _end_of(descriptor: int) -> tuple[bytes, list[bytes], bool]:
    """Return the last entry of a file, the lines after it that kills have cut, and whether the last line is ended."""
    size = os.fstat(descriptor).st_size
    torn: list[bytes] = []
    ended = True
    for length in (USUAL_END, 2 * LONGEST_ENTRY + 2):  # an entry and a cut one, of the usual length and of the longest
        start = max(0, size - length)
        tail = os.pread(descriptor, size - start, start)
        torn, ended = [], not tail or tail.endswith(b"\n")
        for line in reversed(tail.split(b"\n")):
            if is_entry(line):
                return line, torn[::-1], ended
            if line:
                torn.append(line)
    return b"", torn[::-1], ended


def is_entry(line: bytes) -> bool:
    """Whether a line is an entry of some log: an object with a number. A line that a kill has cut is no JSON."""
    try:
        return type(json.loads(line)["n"]) is int
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
