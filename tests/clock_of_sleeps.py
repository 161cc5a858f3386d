"""A clock for tests in which a server waits for replies that do not come."""

from __future__ import annotations

import pytest


class ClockOfSleeps:
    """A clock that only sleeping moves: a deadline passes at once where no reply comes, and never on a slow machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock_of_sleeps(monkeypatch: pytest.MonkeyPatch) -> ClockOfSleeps:
    """The clock of the Flower engine."""
    clock = ClockOfSleeps()
    monkeypatch.setattr("farfield.federation.engines.flower.engine.time", clock)
    return clock
