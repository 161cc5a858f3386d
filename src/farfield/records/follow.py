"""Follow a JSONL file while others append to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from farfield.records.checksums import LineReader

#: Bytes before the place of the last read that must still be there, or else the file was written anew.
_TAIL = 64


class RowFollower:
    """The rows of a JSONL file, each once: a call returns what was added since the last call.

    A run that is resumed writes its file anew, without the rows after its checkpoint. Then `starts` goes up by one and
    the rows are read again from the first. A last line without its end is left for the next call. Lines that are no
    JSON objects, such as one that a kill has cut, are passed over and counted in `broken`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts = 0
        self.broken = 0
        self._place = 0
        self._tail = b""
        self._inode = 0
        self._seen: tuple[int, int, int] | None = None
        self._reader = LineReader()

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the rows since the last call; none while the file does not exist or cannot be read."""
        try:
            about = os.stat(self.path)
            seen = (about.st_ino, about.st_size, about.st_mtime_ns)
            if seen == self._seen:
                return []
            with open(self.path, "rb") as file:
                self._check_start(file, os.fstat(file.fileno()))
                file.seek(self._place)
                added = file.read()
        except OSError:
            return []
        self._seen = seen
        whole = added[: added.rfind(b"\n") + 1]
        self._place += len(whole)
        self._tail = (self._tail + whole)[-_TAIL:]
        return [row for line in whole.splitlines() if (row := self._row(line)) is not None]

    def _check_start(self, file: Any, about: os.stat_result) -> None:
        """Start over if this is not the file that was read before, or no longer what it was."""
        if self._place:
            file.seek(self._place - len(self._tail))
            if about.st_ino == self._inode and file.read(len(self._tail)) == self._tail:
                return
            self.starts += 1
            self._place, self._tail, self.broken, self._reader = 0, b"", 0, LineReader()
        self._inode = about.st_ino

    def _row(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        row = self._reader.row(line)
        if row is not None:
            return row
        self.broken += 1
        return None
