"""What ends a process of a simulation that nobody else would end."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

#: In the environment of a simulation's processes: a file that is there for as long as the simulation is.
ALIVE = "FARFIELD_SIMULATION"
LOOK_SECONDS = 0.5


class Watchdog:
    """Ends this process when its simulation is over, or when a client is at work past its deadline.

    Flower waits for a process however long it takes, so nobody else would end it; Ray starts another in its place.
    """

    def __init__(self, alive: Path) -> None:
        self._alive, self._until = alive, math.inf
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._alive.exists() and time.monotonic() < self._until:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    def limit(self, seconds: float | None) -> None:
        """From now on so many seconds, or as many as it takes."""
        self._until = time.monotonic() + seconds + LOOK_SECONDS if seconds is not None else math.inf
