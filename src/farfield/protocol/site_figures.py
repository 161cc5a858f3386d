"""What a validation report says of one site: rows, events, AUROC with interval, calibration, net benefit, confusion.

Plain values that go into a record as they are. A figure that the site's rows cannot support is None, and `too_thin` or
`refused` says why: a mean over thin cells would hide that. Computed at every evaluated round, hence vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax

from farfield.protocol.calibration import NotDefined, curve, logistic_intercept, logistic_slope, straight_line
from farfield.protocol.decision_curve import decision_curve
from farfield.protocol.metrics import log_odds
from farfield.protocol.roc_interval import auroc_interval, macro_auroc_interval

Floats = NDArray[np.float64]

#: Fewer events, fewer rows without one, or fewer rows of a regression than this carry no interval and no calibration.
FEW_EVENTS = 10
#: Confusion matrices and one-versus-rest intervals stop at this many classes.
MOST_CLASSES = 50
#: Digits that a record keeps of a figure.
DIGITS = 6
RESIDUAL_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def classification_site(
    logits: ArrayLike, labels: ArrayLike, classes: Sequence[str] = (), unseen: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the figures of a classifier at one site, from logits [n, K] (one column: of class 1) and class numbers.

    With two classes, class 1 is the event. With more there is no event: the AUROC is the mean over classes against the
    rest, and the curve compares the highest score with the share of right answers. A label outside 0 … K - 1 is a class
    that the model cannot name: such rows are counted in `unseen`, by name where `unseen` gives names, and used for
    nothing else.
    """
    given, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels).astype(np.int64).reshape(-1)
    given = given[:, None] if given.ndim == 1 else given
    if given.shape[1] == 1:
        given = np.hstack([np.zeros_like(given), given])
    count = given.shape[1]
    known = (truth >= 0) & (truth < count)
    figures: dict[str, Any] = {
        "rows": int(truth.size),
        "events": int((truth == 1).sum()) if count == 2 else None,
        "classes": {},
        "class_order": [],
        "unseen": dict(unseen) if unseen else {"?": int((~known).sum())} if not known.all() else {},
        "auroc": None,
        "calibration": None,
        "brier": None,
        "decision": None,
        "confusion": None,
        "too_thin": None,
        "refused": {},
    }
    given, truth = given[known], truth[known]
    occurs = np.bincount(truth, minlength=count)
    names = classes if len(classes) == count else [str(k) for k in range(count)]
    # JSON files are written with sorted keys, and the confusion matrix has the order of the classes.
    figures["class_order"] = list(names)
    figures["classes"] = {name: int(rows) for name, rows in zip(names, occurs, strict=True)}
    if truth.size == 0:
        return {**figures, "too_thin": "no row has a class that the model knows"}
    if not np.isfinite(given).all():
        figures["refused"] = {"all": "the model gave scores that are not finite"}
        return figures
    if count <= MOST_CLASSES:
        predicted = given.argmax(axis=1)
        figures["confusion"] = (
            np.bincount(truth * count + predicted, minlength=count * count).reshape(count, count).tolist()
        )
    figures |= _two_classes(given[:, 1] - given[:, 0], truth == 1, names[1]) if count == 2 else _classes(given, truth)
    return _rounded(figures)


def regression_site(predictions: ArrayLike, targets: ArrayLike) -> dict[str, Any]:
    """Return the figures of a regression at one site: the line of truths on predictions, residuals, RMSE."""
    guess = np.asarray(predictions, dtype=np.float64).reshape(-1)
    truth = np.asarray(targets, dtype=np.float64).reshape(-1)
    figures: dict[str, Any] = {
        "rows": int(truth.size),
        "calibration": None,
        "residuals": None,
        "rmse": None,
        "too_thin": None,
        "refused": {},
    }
    if not np.isfinite(guess).all():
        figures["refused"] = {"all": "the model gave predictions that are not finite"}
        return figures
    residual = truth - guess
    figures["rmse"] = float(np.sqrt(np.square(residual).mean()))
    if truth.size < FEW_EVENTS:
        figures["too_thin"] = f"{truth.size} rows, and calibration needs {FEW_EVENTS}"
        return _rounded(figures)
    figures["residuals"] = {
        "shares": list(RESIDUAL_QUANTILES),
        "values": np.quantile(residual, RESIDUAL_QUANTILES).tolist(),
        "mean": float(residual.mean()),
    }
    try:
        slope, intercept = straight_line(guess, truth)
        figures["calibration"] = {"slope": slope, "intercept": intercept, "bins": curve(guess, truth)}
    except NotDefined as why:
        figures["refused"] = {"calibration": str(why)}
    return _rounded(figures)


def _two_classes(odds: Floats, events: NDArray[np.bool_], name: str) -> dict[str, Any]:
    probabilities = expit(odds)
    rare = int(min(events.sum(), (~events).sum()))
    figures: dict[str, Any] = {"brier": float(np.square(probabilities - events).mean())}
    if rare == 0:
        which = f"no row of class '{name}'" if not events.any() else f"every row is of class '{name}'"
        return {**figures, "too_thin": f"{which}: AUROC, calibration and net benefit need both classes"}
    value, low, high = auroc_interval(odds[events], odds[~events])
    if rare < FEW_EVENTS:
        what = "events" if events.sum() <= (~events).sum() else "rows without the event"
        return {
            **figures,
            "auroc": {"value": value, "low": None, "high": None},
            "too_thin": f"{rare} {what}: an interval of the AUROC, calibration and net benefit need {FEW_EVENTS}",
        }
    refused: dict[str, str] = {}
    if low is None:
        refused["auroc_interval"] = "the ranking is perfect or says nothing, so its rows show no spread"
    calibration: dict[str, Any] = dict.fromkeys(
        ("slope", "slope_low", "slope_high", "intercept", "intercept_low", "intercept_high")
    )
    for key, fit in (("slope", logistic_slope), ("intercept", logistic_intercept)):
        try:
            found = fit(odds, events)
            calibration |= {key: found.value, f"{key}_low": found.low, f"{key}_high": found.high}
        except NotDefined as why:
            refused[f"calibration_{key}"] = str(why)
    return {
        **figures,
        "auroc": {"value": value, "low": low, "high": high},
        "calibration": {**calibration, "bins": curve(probabilities, events.astype(np.float64))},
        "decision": decision_curve(probabilities, events),
        "refused": refused,
    }


def _classes(logits: Floats, truth: NDArray[np.int64]) -> dict[str, Any]:
    probabilities = softmax(logits, axis=1)
    own = probabilities[np.arange(truth.size), truth]
    figures: dict[str, Any] = {"brier": float((np.square(probabilities).sum(axis=1) - 2.0 * own + 1.0).mean())}
    if truth.size < FEW_EVENTS:
        return {**figures, "too_thin": f"{truth.size} rows: AUROC and calibration need {FEW_EVENTS}"}
    refused = {
        "calibration_slope": "slope and intercept are of two classes",
        "decision": "net benefit is of two classes",
    }
    right = (logits.argmax(axis=1) == truth).astype(np.float64)
    figures["calibration"] = {"slope": None, "intercept": None, "bins": curve(probabilities.max(axis=1), right)}
    if logits.shape[1] > MOST_CLASSES:
        refused["auroc"] = f"more than {MOST_CLASSES} classes"
    elif (found := macro_auroc_interval(log_odds(logits), truth)) is not None:
        thin = _thinnest(truth) < FEW_EVENTS
        low, high = (None, None) if thin else found[1:]
        figures["auroc"] = {"value": found[0], "low": low, "high": high}
        if thin:
            refused["auroc_interval"] = f"a class has fewer than {FEW_EVENTS} rows"
    else:
        refused["auroc"] = "all rows are of one class"
    return {**figures, "refused": refused}


def _thinnest(truth: NDArray[np.int64]) -> int:
    """Return the rows of the rarest class that occurs."""
    counts = np.bincount(truth)
    return int(counts[counts > 0].min())


def _rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Keep six digits of every number: records hold one such block per evaluated round."""
    return {name: _rounded_value(value) for name, value in figures.items()}


def _rounded_value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return _rounded(value)
    return [_rounded_value(of) for of in value] if isinstance(value, list) else value
