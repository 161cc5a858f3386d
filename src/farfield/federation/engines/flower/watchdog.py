"""Ends a process of a simulation that nothing else would end."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

#: An environment variable of a simulation's processes: the path of a file that exists as long as the simulation runs.
ALIVE = "FARFIELD_SIMULATION"
LOOK_SECONDS = 0.5


class Watchdog:
    """Ends this process when its simulation is over, or when a client is at work past its deadline.

    Flower waits for a process however long it takes. Ray starts another process in place of one that has ended.
    """

    def __init__(self, alive: Path) -> None:
        self._alive, self._until = alive, math.inf
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._alive.exists() and time.monotonic() < self._until:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    def limit(self, seconds: float | None) -> None:
        """End this process in so many seconds from now; None removes the limit."""
        self._until = time.monotonic() + seconds + LOOK_SECONDS if seconds is not None else math.inf
