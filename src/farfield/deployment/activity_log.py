"""A log of what happens at a site or at the server, one JSON line per event, for the command that watches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farfield.records.atomic import append_row
from farfield.records.checksums import LineReader

FILE = "activity.jsonl"
#: The most characters of a text. Much of it comes from another machine, which could fill a disk or a terminal with it.
LONGEST_TEXT = 4000


class ActivityLog:
    """A file that the processes at work append to and the command that started them follows."""

    def __init__(self, folder: Path, start: str = "") -> None:
        """`start` names one start of the command: rows that processes of an earlier start still write are left out."""
        self._path, self._start, self._read = folder / FILE, start, 0
        self._reader = LineReader()

    def add(self, kind: str, text: str, **facts: Any) -> None:
        """Append an event: its kind, one sentence, and figures. Long texts are cut."""
        row = {"time": time.time(), "start": self._start, "kind": kind, "text": text, **facts}
        append_row(self._path, {name: _cut(value) if isinstance(value, str) else value for name, value in row.items()})

    def skip_existing(self) -> None:
        """Leave out the rows that are in the file now."""
        self._read = self._path.stat().st_size if self._path.exists() else 0

    def new_rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows that were added since the last call."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added.rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            row = self._reader.row(line)  # None for a line that a kill has cut
            if row is not None and row.get("start", "") == self._start:
                yield row


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} … (cut, {len(text)} characters)"
