"""What a case of the suite is and what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.interleaved import Spread


class Skipped(Exception):
    """A case that cannot be measured here; the message says why in one sentence."""


@dataclass(frozen=True)
class Figure:
    """One measured figure: a median with its spread, and the goal if there is one."""

    name: str
    value: float
    low: float
    high: float
    goal: float | None = None
    #: Whether the goal is the largest or the smallest value that meets it.
    sense: Literal["at most", "at least"] = "at most"
    unit: str = "×"

    @classmethod
    def of(
        cls,
        name: str,
        spread: Spread,
        goal: float | None = None,
        sense: Literal["at most", "at least"] = "at most",
        unit: str = "×",
    ) -> Figure:
        return cls(name, spread.median, spread.low, spread.high, goal, sense, unit)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.sense == "at most" else self.value >= self.goal


@dataclass(frozen=True)
class Check:
    """Whether something that must hold for the figures to mean anything does hold, in one sentence."""

    sentence: str
    holds: bool


@dataclass(frozen=True)
class Outcome:
    """What a case returns."""

    figures: tuple[Figure, ...]
    checks: tuple[Check, ...] = ()
    #: Median seconds by contender, for whoever wants to know what the ratios are made of.
    seconds: Mapping[str, float] = field(default_factory=dict)
    #: What was left out, and why.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """How long to measure. Without `repetitions` each case has its own number of turns."""

    repetitions: int | None = None
    #: Everything as small as it can be, to see that the cases run; the figures mean nothing.
    short: bool = False

    def turns(self, usual: int, short: int = 2) -> int:
        if self.repetitions is not None:
            return self.repetitions
        return short if self.short else usual


@dataclass(frozen=True)
class Case:
    """A case: its name, what it measures in words, and the function that measures it."""

    name: str
    title: str
    run: Callable[[Options], Outcome]
    #: A letter that it is also called by.
    letter: str = ""


def data_folder(*files: str) -> Path:
    """Return the folder of FARFIELD_DATA; skip the case where the variable or one of the files is missing."""
    named = os.environ.get("FARFIELD_DATA")
    if not named:
        raise Skipped(f"FARFIELD_DATA does not name a folder with {' and '.join(files)}")
    for file in files:
        if not (Path(named) / file).exists():
            raise Skipped(f"{file} is not in the folder that FARFIELD_DATA names")
    return Path(named)
