"""Problems for the server's operator, at a bounded rate: the same one is told once and then counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

#: Seconds in which a problem that comes again is only counted.
WINDOW = 60.0
#: Lines within a window, whatever the problems are: a site that invents new ones does not fill a console or a disk.
MOST_LINES = 20


@dataclass
class _Told:
    text: str
    since: float
    again: int = 0


class ProblemFolding:
    """Decides what is told now and what is counted. Call `hear` for each problem, and `due` every second or so."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[Hashable, _Told] = {}
        self._lines: list[float] = []
        self._unsaid = 0

    def hear(self, key: Hashable, text: str) -> list[str]:
        """Return the lines to print for a problem. Problems with the same key are the same problem."""
        now = self._clock()
        lines = self.due()
        known = self._told.get(key)
        if known is not None:
            known.text = text
            known.again += 1
            return lines
        if not self._room(now):
            self._unsaid += 1
            return lines
        self._told[key] = _Told(text, now)
        return [*lines, *self._spoken([text], now)]

    def due(self, last: bool = False) -> list[str]:
        """Return the lines about problems that came again, once their window is over; `last` ends all windows."""
        now = self._clock()
        lines = []
        for key, known in list(self._told.items()):
            if now - known.since < WINDOW and not last:
                continue
            if not known.again:
                del self._told[key]
            elif self._room(now) or last:
                lines += self._spoken([f"{known.text} (the same {known.again} more times)"], now)
                self._told[key] = _Told(known.text, now)
        if self._unsaid and (last or self._room(now)):
            lines += self._spoken([f"{self._unsaid} more problems; run/events.jsonl has all of them"], now)
            self._unsaid = 0
        return lines

    def _room(self, now: float) -> bool:
        self._lines = [at for at in self._lines if now - at < WINDOW]
        return len(self._lines) < MOST_LINES

    def _spoken(self, lines: list[str], now: float) -> list[str]:
        self._lines += [now] * len(lines)
        return lines
