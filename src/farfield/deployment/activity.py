"""What happened at a site or at the server, one JSON line each, for whoever watches the processes that do the work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farfield.records.atomic import append_row, read_rows

FILE = "activity.jsonl"


class Activity:
    """A file that some processes write and another one follows."""

    def __init__(self, folder: Path) -> None:
        self._path, self._read = folder / FILE, 0

    def add(self, kind: str, text: str, **facts: Any) -> None:
        append_row(self._path, {"time": time.time(), "kind": kind, "text": text, **facts})

    def forget(self) -> None:
        """What was there before does not concern whoever follows now."""
        self._read = sum(1 for _ in self._rows())

    def news(self) -> Iterator[dict[str, Any]]:
        """What has been added since the last look."""
        for number, row in enumerate(self._rows()):
            if number >= self._read:
                self._read = number + 1
                yield row

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self._path.exists():
            yield from read_rows(self._path)
