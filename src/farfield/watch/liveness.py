"""Whether somebody is at work on a folder, and how long the work will take."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from farfield.records.run_files import LOCK

LOCKS = Path("/proc/locks")
#: A folder whose last record is younger than this is being written, whoever does it: locks of processes on other
#: machines and in other containers cannot be seen.
FRESH_SECONDS = 30.0
#: Seconds that the rate of progress is taken over, and the least for a first estimate.
WINDOW, LEAST = 600.0, 4.0


def is_locked(folder: Path) -> bool:
    """Return whether a process of this machine holds a folder's lock. The lock itself is left alone.

    Taking the lock to try would make a bench that starts at that moment fail. Where the system does not list locks the
    answer is False.
    """
    try:
        inode = str(os.stat(folder / LOCK).st_ino)
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return False
    return any("FLOCK" in line and "->" not in line and f":{inode} " in line for line in lines)


def is_fresh(changed: float) -> bool:
    """Return whether a time is so recent that somebody must be at work."""
    return time.time() - changed < FRESH_SECONDS


class TimeLeft:
    """The time left, from the rounds that were finished while one watched.

    A round counts as much as a round of its method costs: the mean of the method's finished runs, or of all finished
    runs, or the same for all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, dict[str, int]]] = deque()

    def seconds(
        self, done: Mapping[str, int], total: Mapping[str, int], cost: Mapping[str, float], running: bool
    ) -> float | None:
        """Return the seconds left; None while nothing runs or nobody can say. Rounds and costs are by method."""
        now = self._clock()
        if not running or (self._seen and sum(done.values()) < sum(self._seen[-1][1].values())):
            self._seen.clear()  # a pause, or a resumed run that repeats rounds, is no measure of speed
        if not running:
            return None
        self._seen.append((now, dict(done)))
        while now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        began, before = self._seen[0]
        usual = sum(cost.values()) / len(cost) if cost else 1.0
        weights = {label: cost.get(label, usual) for label in total}
        made = sum(weights[label] * (done.get(label, 0) - before.get(label, 0)) for label in total)
        left = sum(weights[label] * (total[label] - done.get(label, 0)) for label in total)
        if now - began < LEAST or made <= 0:
            return None
        return left * (now - began) / made
