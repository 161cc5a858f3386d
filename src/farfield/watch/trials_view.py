"""The trials of a tuning as their files show them: how many are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farfield.records.follow import RowFollower
from farfield.records.tuning_trials import TRIALS, TUNING


class TrialsView:
    """Counts the trials of a bench that tunes before its runs. Trials measure source domains alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, tuple[RowFollower, set[Any]]] = {}

    def made(self) -> int:
        """Return how many trials are recorded; one that was recorded twice counts once."""
        for path in self._folder.glob(f"{TUNING}/*/*/{TRIALS}"):
            self._files.setdefault(path, (RowFollower(path), set()))
        for follower, numbers in self._files.values():
            numbers.update(row.get("number") for row in follower.new_rows())
        return sum(len(numbers) for _, numbers in self._files.values())


def trials_asked(plan: Mapping[str, Any]) -> int:
    """Return how many trials a plan asks for: so many per method with something to tune and held-out fold."""
    tuning = plan.get("tuning")
    if not isinstance(tuning, Mapping):
        return 0
    methods = [label for label, names in dict(tuning.get("parameters", {})).items() if names]
    trials, folds = tuning.get("trials", 0), plan.get("folds") or plan.get("held_out", ())
    return trials * len(methods) * len(folds) if isinstance(trials, int) else 0
