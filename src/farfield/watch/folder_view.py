"""A folder that may hold a bench, a training, a deployment, or nothing yet."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from farfield.deployment.server.output_folder import FLOWER, RUN
from farfield.printable import visible_in
from farfield.records.bench_folder import BENCH
from farfield.watch.bench_view import REPORT, BenchView
from farfield.watch.single_view import SingleView

#: As in `records.sweep_folder`, whose import takes torch along.
POINTS = "points"
#: A state that is younger than this is given to the next reader as well.
KEEP_SECONDS = 0.3


class FolderView:
    """What a folder holds, as JSON. Safe to call from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._view: BenchView | SingleView | None = None
        self._last: dict[str, Any] = {}
        self._made = -KEEP_SECONDS

    def state(self) -> bytes:
        """Return the state that the page shows."""
        return json.dumps(visible_in(self._state()), allow_nan=False).encode()

    def report(self) -> Path | None:
        """Return the report of a bench that has ended; None before that."""
        return self._bench_folder() / REPORT if self._state().get("report") else None

    def _state(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() - self._made >= KEEP_SECONDS:
                self._choose()
                seen = self._waiting() if self._view is None else self._view.snapshot()
                self._last = {"folder": str(self._bench_folder()), **seen}
                self._made = time.monotonic()
            return self._last

    def _choose(self) -> None:
        """Look what the folder holds: it may not exist yet, or be replaced by something else."""
        bench = self._bench_folder()
        if (bench / BENCH).exists():
            if not isinstance(self._view, BenchView) or self._view.folder != bench:
                self._view = BenchView(bench)
        elif (self.folder / RUN).is_dir() or (self.folder / FLOWER).is_dir():
            if not isinstance(self._view, SingleView):
                self._view = SingleView(self.folder)
        else:
            self._view = None

    def _bench_folder(self) -> Path:
        """Return the folder itself, or of a sweep the folder of the point that was begun last."""
        begun = []
        for path in self.folder.glob(f"{POINTS}/*/{BENCH}"):
            with suppress(OSError):
                begun.append((path.stat().st_mtime_ns, path.parent))
        return max(begun)[1] if begun else self.folder

    def _waiting(self) -> dict[str, Any]:
        if not self.folder.exists():
            why = "This folder does not exist yet."
        elif not self.folder.is_dir():
            why = "This is a file. Give 'farfield watch' the folder that --out names."
        else:
            why = "There is no bench, training or deployment in this folder yet."
        return {"kind": "nothing", "status": "waiting", "title": "", "headline": f"{why} Waiting for its first record."}
