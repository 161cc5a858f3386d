"""Rows of a class that no source has: the model cannot name it, so it is wrong there and has no score for it.

Such rows count as wrong in what counts right answers (accuracy, balanced accuracy, macro-F1). They are left out of what
needs a score for the true class (loss, AUROC, average precision, calibration).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def metrics_with_unseen(
    labels: Integers,
    classes: int,
    predicted: Integers,
    measured: Callable[[NDArray[np.bool_]], Mapping[str, float]],
) -> dict[str, float]:
    """Return the metrics of rows of which some have labels beyond the model's `classes`.

    `predicted` are the classes that the model says, -1 where it says none. `measured` gives the metrics of the rows
    that it is told to take; without any row of a known class there are only those that count right answers.
    """
    known = labels < classes
    if known.all():
        return dict(measured(known))
    metrics = dict(measured(known)) if known.any() else {}
    hits, recalls, scores = predicted == labels, [], []
    for code in np.unique(labels):
        own = labels == code
        right = int((hits & own).sum())
        recalls.append(right / int(own.sum()))
        scores.append(2.0 * right / int(own.sum() + (predicted == code).sum()))
    counted = {"accuracy": hits.mean(), "balanced_accuracy": np.mean(recalls), "macro_f1": np.mean(scores)}
    names = counted if not metrics else [name for name in counted if name in metrics]
    return metrics | {name: float(counted[name]) for name in names}
