"""What happened at a site or at the server, one JSON line each, for whoever watches the processes that do the work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from farfield.records.atomic import append_row

FILE = "activity.jsonl"


class Activity:
    """A file that some processes write and another one follows."""

    def __init__(self, folder: Path, start: str = "") -> None:
        """`start` names those who belong together: rows of processes of an earlier start are not news."""
        self._path, self._start, self._read = folder / FILE, start, 0

    def add(self, kind: str, text: str, **facts: Any) -> None:
        append_row(self._path, {"time": time.time(), "start": self._start, "kind": kind, "text": text, **facts})

    def forget(self) -> None:
        """What was there before does not concern whoever follows now."""
        self._read = self._path.stat().st_size if self._path.exists() else 0

    def news(self) -> Iterator[dict[str, Any]]:
        """What has been added since the last look."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added.rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            with suppress(ValueError):  # a line that a kill has cut
                row = json.loads(line)
                if row.get("start", "") == self._start:
                    yield row
