"""One run as its folder shows it: rounds, events, whether it is done."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farfield.records.bench_folder import FAILURE
from farfield.records.checked_files import read_checked_json
from farfield.records.follow import RowFollower
from farfield.records.run_files import EVENTS, RESULT, ROUNDS


class RunView:
    """Follows a run. Call `poll`, then read the attributes.

    `metric` is what validation is shown in. A run whose rows do not have it is shown by `fallback`. The rows themselves
    are kept with `keep_rows` only: a large bench has a hundred thousand. `rounds` is how many the run is to have; while
    rounds are added, the result that is there has fewer.
    """

    def __init__(self, path: Path, metric: str, fallback: str, keep_rows: bool = False) -> None:
        self.rounds: int | None = None
        self.path, self.metric, self._fallback, self._keep_rows = path, metric, fallback, keep_rows
        self.round = 0
        self.loss: float | None = None
        self.validation: float | None = None
        #: Round and figure, for the rounds that have one.
        self.losses: list[tuple[int, float]] = []
        self.validations: list[tuple[int, float]] = []
        self.rows: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.error: str | None = None
        self.result: dict[str, Any] | None = None
        self._rounds, self._events = RowFollower(path / ROUNDS), RowFollower(path / EVENTS)
        self._starts = (0, 0)
        self._result_seen: tuple[int, int] | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result with all rounds."""
        if self.result is None:
            return False
        made = self.result.get("rounds")
        return self.rounds is None or not isinstance(made, int) or made >= self.rounds

    @property
    def broken(self) -> int:
        """Lines that could not be read."""
        return self._rounds.broken + self._events.broken

    @property
    def changed(self) -> float:
        """When the run last wrote down a round, as a time; 0 for never."""
        try:
            return os.stat(self.path / ROUNDS).st_mtime
        except OSError:
            return 0.0

    def poll(self) -> None:
        """Read what is new."""
        rows, events = self._rounds.new_rows(), self._events.new_rows()
        if self._rounds.starts != self._starts[0]:  # the run was resumed from its checkpoint
            self.round, self.loss, self.validation = 0, None, None
            self.rows, self.losses, self.validations = [], [], []
        if self._events.starts != self._starts[1]:
            self.events = []
        self._starts = (self._rounds.starts, self._events.starts)
        for row in rows:
            self._add(row)
        self.events += events
        self._read_end()

    def _add(self, row: dict[str, Any]) -> None:
        number = row.get("round")
        if not isinstance(number, int) or number <= self.round:
            return
        self.round = number
        if self._keep_rows:
            self.rows.append(row)
        self.loss = number_or_none(row.get("loss"))
        if self.loss is not None:
            self.losses.append((number, self.loss))
        value = self._mean_validation(row.get("validation"))
        if value is not None:
            self.validation = value
            self.validations.append((number, value))

    def _mean_validation(self, domains: Any) -> float | None:
        """Return the mean over the source domains, each with the same weight; None if a domain has no figure."""
        if not isinstance(domains, Mapping) or not domains:
            return None
        if self.metric != "rmse" and not any(isinstance(of, Mapping) and self.metric in of for of in domains.values()):
            self.metric = self._fallback  # records of a version that did not write it, which no row of the run has
        values = [validation_figure(figures, self.metric) for figures in domains.values()]
        numbers = [value for value in values if value is not None]
        return sum(numbers) / len(numbers) if len(numbers) == len(values) else None

    def _read_end(self) -> None:
        """Look whether the run has ended: with a result, or with an error."""
        try:
            about = os.stat(self.path / RESULT)
            seen = (about.st_ino, about.st_mtime_ns)
            if seen != self._result_seen:
                self.result = read_checked_json(self.path / RESULT)
                self._result_seen = seen
        except (OSError, ValueError):
            self.result = self._result_seen = None
        self.error = None if self.done else _failure(self.path / FAILURE)


def validation_figure(figures: Any, metric: str) -> float | None:
    """Return a metric of one domain; the root of the mean squared error is worked out from the loss."""
    if not isinstance(figures, Mapping):
        return None
    if metric == "rmse" and "rmse" not in figures:
        loss = number_or_none(figures.get("loss"))
        return None if loss is None or loss < 0 else math.sqrt(loss)
    return number_or_none(figures.get(metric))


def number_or_none(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _failure(path: Path) -> str | None:
    try:
        return str(read_checked_json(path)["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "the run has failed, and the file with the reason cannot be read"
