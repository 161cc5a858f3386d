"""The letters that nodes write to whoever waits for their runs: how far runs are, and runs that have ended.

An actor of its own, beside the waiting process, because Ray's clients cannot follow a task that is under way.
"""

from __future__ import annotations

from typing import Any

#: What is told of a run. The files are those of its folder where the node does not share the sweep's.
Letter = dict[str, Any]


class Mailbox:
    """Keeps the letters until they are fetched. Of a run's progress only the last letter is kept."""

    def __init__(self) -> None:
        self._progress: dict[int, Letter] = {}
        self._ended: list[Letter] = []

    def tell(self, letters: list[Letter]) -> None:
        """Take letters about runs that are under way."""
        self._progress |= {letter["run"]: letter for letter in letters}

    def deliver(self, letter: Letter) -> None:
        """Take a run that has ended."""
        self._progress.pop(letter["run"], None)
        self._ended.append(letter)

    def fetch(self) -> list[Letter]:
        """Give all letters away."""
        letters = [*self._progress.values(), *self._ended]
        self._progress, self._ended = {}, []
        return letters
