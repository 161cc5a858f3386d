"""What sites that only evaluate say of a model: checked when it comes, reported once the model is chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield.errors import UserError
from farfield.federation.reply_checks import LARGEST, SLACK
from farfield.protocol.metrics import METRICS, SHARES
from farfield.records.sealed import count_look, open_sealed
from farfield.trained.model_folder import load_model

#: The smallest and the largest value of each metric that is no share; those that are not here lie from 0 to `LARGEST`.
RANGES = {**dict.fromkeys(SHARES, (0.0, 1.0)), "ece": (0.0, 1.0), "brier": (0.0, 2.0), "r2": (-LARGEST, 1.0)}

#: The metrics that are reported, in this order, with their names in a sentence; the records have the others.
REPORTED = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "loss": "loss",
    "rmse": "RMSE",
    "r2": "R²",
    "mae": "mean absolute error",
}


def read_metrics(answer: Any, kind: str) -> dict[str, float]:
    """Return a site's metrics. Raises UserError for what no measurement of this kind of task can give.

    One figure that cannot be makes the others worth nothing: the answer is dropped as a whole.
    """
    if not isinstance(answer, Mapping) or not answer:
        raise UserError("its metrics cannot be read")
    known = METRICS[kind]
    for name, value in answer.items():
        if name not in known:
            shown = name if isinstance(name, str) and len(name) <= 40 and name.isprintable() else "something"
            raise UserError(f"it sent {len(answer)} metrics, among them '{shown}', which is none of {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"its '{name}' is not a finite number")
        low, high = RANGES.get(name, (0.0, LARGEST))
        if not low - SLACK <= value <= high + SLACK:
            raise UserError(f"its '{name}' is {value:g}, and it lies between {low:g} and {high:g}")
    return {name: float(value) for name, value in answer.items()}


def evaluation_sentences(out: Path, sites: Sequence[str]) -> list[str]:
    """Return one sentence per site about the model of the round that was kept.

    The sealed metrics are opened after the last round, when no choice can depend on them, and the look is counted.
    """
    if not sites:
        return []
    kept = int(load_model(out).about["round"])
    count_look(out / "run", "the model card of a deployment")
    figures = dict(open_sealed(out / "run")).get(kept, {})
    sentences = []
    for site in sites:
        prefix = "" if len(sites) == 1 else f"{site}: "
        of_site = {word: figures.get(f"{prefix}{name}") for name, word in REPORTED.items()}
        metrics = [f"{word} {value:.4f}" for word, value in of_site.items() if value is not None]
        if metrics:
            sentences.append(f"at '{site}', which took no part in the training, round {kept} has {', '.join(metrics)}")
    return sentences
