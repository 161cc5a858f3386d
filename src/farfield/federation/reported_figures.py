"""Hold what a reply says of its own work against what the client declared when it joined, and against the settings.

A client's weight is its number of training rows, so a client that may say any number takes all the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farfield.federation.execution import Outcome


class ReportedFigures:
    """What is known of each client's rows: later replies must agree with the first that was accepted."""

    def __init__(self) -> None:
        self._samples: dict[int, int] = {}

    def check(
        self, phase: Callable[..., Any], outcome: Outcome, declared: int | None, round: int, hidden: bool = False
    ) -> None:
        """Give an outcome a problem if a figure in it cannot be, and take its figures away, so that none is counted.

        `declared` are the client's rows in all, None where the client is not a party of its own. `hidden` says that the
        values are integers of a secure sum, of which nothing can be read.
        """
        doubt = self._doubt(phase, outcome, declared, round, hidden)
        if doubt is None:
            return
        outcome.steps = outcome.examples = 0
        if outcome.problem is None:
            outcome.problem, outcome.values = doubt, {}

    def _doubt(
        self, phase: Callable[..., Any], outcome: Outcome, declared: int | None, round: int, hidden: bool
    ) -> str | None:
        algorithm = getattr(phase, "__self__", None)
        if declared is not None:
            doubt = self._of_envelope(algorithm, outcome, declared, round)
            if doubt is not None:
                return doubt
        if outcome.problem is not None or hidden:
            return None
        implausible: Callable[..., str | None] | None = getattr(algorithm, "implausible", None)
        if implausible is not None:
            rows = None if declared is None else declared - outcome.samples
            doubt = implausible(phase.__name__, outcome.values, outcome.samples, rows)
            if doubt is not None:
                return doubt
        if declared is not None:
            self._samples[outcome.client] = outcome.samples
        return None

    def _of_envelope(self, algorithm: Any, outcome: Outcome, declared: int, round: int) -> str | None:
        before = self._samples.get(outcome.client, outcome.samples)
        if outcome.problem is None:
            if not 1 <= outcome.samples <= declared:
                return f"it says that it has {outcome.samples} training rows, and it joined with {declared} rows"
            if outcome.samples != before:
                return f"it says that it has {outcome.samples} training rows, and it said {before} before"
        work = getattr(algorithm, "most_work", None)
        most = None if work is None else work(min(max(outcome.samples, 1), declared), round)
        if most is None:
            return None
        for name, given, limit in (("steps", outcome.steps, most[0]), ("examples", outcome.examples, most[1])):
            if given > limit:
                return f"it says that it made {given} {name}, and with its rows and settings it can make {limit}"
        return None
