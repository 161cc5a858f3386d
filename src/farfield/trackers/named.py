"""A tracker as a user types it: `tensorboard`, `mlflow:sqlite:///runs.db`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from farfield.errors import UserError
from farfield.runs.callbacks import Callback
from farfield.trackers.mlflow_runs import MLflow
from farfield.trackers.tensorboard_events import TensorBoard
from farfield.trackers.wandb_runs import WandB

_MAKERS: dict[str, Callable[[str | None], Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
NAMES = tuple(_MAKERS)


def tracker_named(text: str) -> Callback:
    """Make the tracker that a text names: its name, or its name, a colon, and where it shall write."""
    name, colon, place = text.partition(":")
    if name not in _MAKERS:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"choose from {', '.join(NAMES)}"
        raise UserError(f"unknown tracker '{name}'; {hint}")
    if colon and not place:
        raise UserError(f"'{text}' names no place after the colon; omit the colon for the default")
    return _MAKERS[name](place or None)
