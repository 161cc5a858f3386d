"""End the ServerApp with the command that started it.

Flower starts the ServerApp in a group of its own, which no signal to the SuperLink reaches. Its process id is in the
activity log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from farfield.deployment.activity_log import ActivityLog

#: Seconds that the ServerApp may take to end by itself. Every finished round is on the disk, so nothing is lost.
END_SECONDS = 3.0


@contextlib.contextmanager
def app_ended(folder: Path, start: str) -> Iterator[None]:
    """Leave this context only when the ServerApp of this start of the server has ended."""
    try:
        yield
    finally:
        for row in ActivityLog(folder, start).new_rows():
            if row["kind"] == "started":
                _end(int(row["pid"]))


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
