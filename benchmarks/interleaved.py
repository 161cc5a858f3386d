"""Contenders that take turns, and the ratios of their times within a turn.

    timings = interleaved({"ours": ours, "bare loop": bare}, turns=20)
    timings.ratio("ours", "bare loop")        # Spread(median, low, high)

A machine that is busy for a while slows all contenders of a turn, so the ratio is taken within each turn, and the
median over the turns. The order changes from turn to turn: what one contender leaves in the caches favours nobody.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Prepares a turn, whose number it is given, and returns what is timed. Warm-up turns count from 0 as well.
Contender = Callable[[int], Callable[[], Any]]
#: With fewer turns than this, quartiles say less than the range.
TURNS_FOR_QUARTILES = 5


@dataclass(frozen=True)
class Spread:
    """A median, and how far the values lie apart: their quartiles, or with fewer than five the lowest and highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("there is no value to take a median of")
        if len(values) < TURNS_FOR_QUARTILES:
            return cls(statistics.median(values), min(values), max(values))
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Timings:
    """The seconds of each contender, turn by turn."""

    seconds: Mapping[str, Sequence[float]]

    def ratio(self, contender: str, to: str) -> Spread:
        """Return how many times as long a contender takes as another, by the ratios within each turn."""
        pairs = zip(self.seconds[contender], self.seconds[to], strict=True)
        return Spread.of([own / other for own, other in pairs])

    def median(self, contender: str) -> float:
        return statistics.median(self.seconds[contender])

    def medians(self) -> dict[str, float]:
        return {contender: self.median(contender) for contender in self.seconds}


def interleaved(
    contenders: Mapping[str, Contender], turns: int, warm_up: int = 2, clock: Callable[[], float] = time.perf_counter
) -> Timings:
    """Let the contenders take turns. The first turns, which load code and warm caches, are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warm_up + turns):
        for name in random.Random(turn).sample([*contenders], len(contenders)):
            timed = contenders[name](turn)
            started = clock()
            timed()
            taken = clock() - started
            if turn >= warm_up:
                seconds[name].append(taken)
    return Timings(seconds)
