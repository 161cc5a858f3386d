"""How good a model is on one domain, from its scores and the true answers.

Everything is computed on scores, never on thresholded predictions, and over the whole domain at once, never as a mean
of batch means. A metric that the data cannot define (AUROC with one class only, R² with constant targets) is left out
of the result, so that no NaN reaches a table. Called after every evaluated round, hence vectorised over classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Which way each metric improves.
HIGHER_IS_BETTER: dict[str, bool] = {
    "accuracy": True,
    "balanced_accuracy": True,
    "macro_f1": True,
    "loss": False,
    "balanced_loss": False,
    "auroc": True,
    "average_precision": True,
    "ece": False,
    "brier": False,
    "rmse": False,
    "mae": False,
    "r2": True,
    "variance": False,
    "entropy": True,
}

#: The metrics of each kind of task, in the order of tables.
METRICS: dict[str, tuple[str, ...]] = {
    "classification": (
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "loss",
        "balanced_loss",
        "auroc",
        "average_precision",
        "ece",
        "brier",
    ),
    "regression": ("rmse", "mae", "r2", "loss"),
}

#: Metrics that are printed in percent, and all whose values are shares of one.
PERCENT = frozenset({"accuracy", "balanced_accuracy", "macro_f1"})
SHARES = PERCENT | {"auroc", "average_precision"}

ECE_BINS = 15

# Scores ranked in one go; more are ranked a block of classes at a time, which bounds the memory.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Scored:
    """Rows with probabilities [n, K], their logarithms, what the rows are ranked by, and the class that is named."""

    probabilities: Floats
    logarithms: Floats
    ranking: Floats
    predicted: Integers
    #: Rows whose scores are all finite; the others count as wrong, with the largest loss there is.
    usable: NDArray[np.bool_]


def classification_metrics(scores: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the metrics of a classifier from its class probabilities.

    `scores` is [n, K], one row of class probabilities per example; a single column (or a vector) is the probability of
    class 1. `labels` is [n], class numbers. Equal top scores go to the lowest class. Where logits are known,
    `logit_metrics` keeps more digits of them.

    - `accuracy`; `balanced_accuracy`: the mean over the classes that occur of the share of their rows that are right.
    - `macro_f1`: mean F1 over the classes that occur in `labels`; a class nobody has is not averaged in as zero.
    - `loss`: mean negative log likelihood in nats; `balanced_loss`: the mean over classes of the mean over their rows.
    - `auroc`, `average_precision`: of class 1 when there are two classes, else the mean over one-versus-rest problems
      of the classes that have positives and negatives. Left out when there is no such class.
    - `ece`: expected calibration error, 15 equal-width bins (a, b] of the top score.
    - `brier`: mean squared error of the probabilities; of class 1 for two classes (0 to 1), else summed over the
      classes (0 to 2).

    A row with a non-finite score, as a diverged model gives, counts as wrong and has the largest loss there is.
    The metrics that need every score (`auroc`, `average_precision`, `ece`, `brier`) are then left out.
    """
    table, floor = _probabilities(scores)
    usable = _finite_rows(table)
    _check_probabilities(table if bool(usable.all()) else table[usable])
    with np.errstate(invalid="ignore"):
        logarithms = np.log(np.maximum(table, floor))
    scored = _Scored(table, logarithms, table, table.argmax(axis=1), usable)
    return _metrics(scored, _class_numbers(labels, *table.shape), -np.log(floor))


def logit_metrics(logits: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the metrics of a classifier from its logits [n, K], or [n] and [n, 1] for two classes with one logit.

    As `classification_metrics`, in float64 from the logits themselves: a probability that rounds to 1 has lost what
    the loss and the order of the rows depend on. Where K is over 2 a class is ranked by its log odds against the rest.

    A label beyond the model's classes is a class that no source has: such rows count as wrong in what counts right
    answers (accuracy, balanced accuracy, macro-F1), each such class as one of which nothing is right, and they are left
    out of what needs a score for the true class.
    """
    given = np.asarray(logits, dtype=np.float64)
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or 0 in given.shape:
        raise ValueError(f"logits must be a non-empty [examples, classes] table, not of shape {given.shape}")
    if given.shape[1] == 1:
        given = np.hstack([np.zeros_like(given), given])
    usable = _finite_rows(given)
    safe = given if bool(usable.all()) else np.where(usable[:, None], given, 0.0)
    odds = log_odds(safe)
    logarithms = -np.logaddexp(0.0, -odds)
    scored = _Scored(np.exp(logarithms), logarithms, odds, safe.argmax(axis=1), usable)
    truth = _class_numbers(labels, len(safe), max(safe.shape[1], int(np.max(labels, initial=0)) + 1))
    return _metrics(scored, truth, np.full(safe.shape[1], WORST_LOSS))


def _finite_rows(table: Floats) -> NDArray[np.bool_]:
    """Return which rows have finite entries only."""
    return np.asarray(np.isfinite(table).all(axis=1))


def log_odds(logits: Floats) -> Floats:
    """Return the logarithm of each class's odds against all others, exact also where one class has nearly all."""
    if logits.shape[1] == 2:
        second = logits[:, 1] - logits[:, 0]
        return np.stack([-second, second], axis=1)
    top = logits.argmax(axis=1)
    rows = np.arange(len(logits))
    highest = logits[rows, top]
    shares = np.exp(logits - highest[:, None])
    # Of the sum over the others: without the top class for the top class itself, where subtracting would cancel.
    rest = shares.copy()
    rest[rows, top] = 0.0
    below = rest.sum(axis=1)
    others = (below + 1.0)[:, None] - shares
    others[rows, top] = below
    with np.errstate(divide="ignore"):
        odds: Floats = logits - highest[:, None] - np.log(np.maximum(others, np.finfo(np.float64).tiny))
    # Where the top class's rivals underflow altogether, the nearest of them is all there is.
    lost = below < np.finfo(np.float64).tiny
    if lost.any():
        second = np.partition(logits[lost], -2, axis=1)[:, -2]
        odds[np.flatnonzero(lost), top[lost]] = highest[lost] - second
    return odds


#: The loss of a row whose scores are not finite: what the smallest normal float32 costs.
WORST_LOSS = float(-np.log(np.finfo(np.float32).tiny))


def _metrics(scored: _Scored, truth: Integers, worst_loss: Floats) -> dict[str, float]:
    n, classes = scored.probabilities.shape
    named, usable = truth < classes, scored.usable
    complete = bool(usable.all())

    predicted = scored.predicted if complete else np.where(usable, scored.predicted, -1)
    correct = predicted == truth
    occurs = np.bincount(truth[named], minlength=classes)
    guessed = np.bincount(predicted[usable], minlength=classes)
    hits = np.bincount(truth[correct], minlength=classes)
    present = occurs > 0
    kinds = int(present.sum()) + len(np.unique(truth[~named]))
    metrics = {
        "accuracy": float(correct.mean()),
        "balanced_accuracy": float((hits[present] / occurs[present]).sum() / kinds),
        "macro_f1": float((2.0 * hits[present] / (guessed + occurs)[present]).sum() / kinds),
    }
    if not named.any():
        return metrics
    own_class = np.where(named, truth, 0)
    costs = np.where(usable, -scored.logarithms[np.arange(n), own_class], worst_loss[own_class])[named]
    by_class = np.bincount(truth[named], weights=costs, minlength=classes)
    metrics["loss"] = float(costs.mean())
    metrics["balanced_loss"] = float((by_class[present] / occurs[present]).mean())
    if not complete:
        return metrics

    known, count = truth[named], int(named.sum())
    ranked = np.array([1]) if classes == 2 else np.arange(classes)
    ranked = ranked[(occurs[ranked] > 0) & (occurs[ranked] < count)]
    metrics.update(_ranking_metrics(scored.ranking[named], known, ranked))

    table = scored.probabilities[named]
    confidence = table.max(axis=1)
    bins = np.clip(np.ceil(confidence * ECE_BINS).astype(np.int64) - 1, 0, ECE_BINS - 1)
    metrics["ece"] = float(np.abs(np.bincount(bins, weights=correct[named] - confidence)).sum() / count)
    if classes == 2:
        metrics["brier"] = float(np.square(table[:, 1] - known).mean())
    else:
        own = table[np.arange(count), known]
        metrics["brier"] = float((np.square(table).sum(axis=1) - 2.0 * own + 1.0).mean())
    return metrics


def regression_metrics(predictions: ArrayLike, targets: ArrayLike) -> dict[str, float]:
    """Return the mean squared error (`loss`), its root (`rmse`), the mean absolute error (`mae`) and R².

    Both are [n] or [n, 1]. `r2` is left out when the targets are constant or a prediction is not finite; in the latter
    case, as after divergence, the errors are infinite.
    """
    guess, truth = _vector(predictions, "predictions"), _vector(targets, "targets")
    if guess.size != truth.size:
        raise ValueError(f"{guess.size} predictions do not match {truth.size} targets")
    if not np.isfinite(truth).all():
        raise ValueError("targets hold a value that is not finite")
    if not np.isfinite(guess).all():
        return dict.fromkeys(("loss", "rmse", "mae"), float("inf"))
    error = guess - truth
    squared = float(np.square(error).mean())
    metrics = {"loss": squared, "rmse": squared**0.5, "mae": float(np.abs(error).mean())}
    # The range tells constancy exactly; the variance of n equal numbers need not come out as zero.
    if np.ptp(truth) > 0:
        metrics["r2"] = 1.0 - metrics["loss"] / float(truth.var())
    return metrics


def rmse_from_loss(loss: float) -> float:
    """Return the root of a mean squared error; NaN for a loss below zero, which is none."""
    return math.nan if loss < 0 else math.sqrt(loss)


def fairness(accuracies: Iterable[float]) -> dict[str, float]:
    """How evenly accuracy is spread over clients or sub-environments (FedILC, table 3).

    `variance` is the population variance. `entropy` is Shannon's, in nats, of the accuracies divided by their sum: ln n
    when all are equal (so also when all are zero). The paper prints variance × 1000 and entropy × 10.
    """
    values = _vector(list(accuracies), "accuracies")
    if not (values >= 0).all():
        raise ValueError(f"accuracies must be numbers from 0 up, not {values.tolist()}")
    total = values.sum()
    shares = values / total if total > 0 else np.full(values.size, 1.0 / values.size)
    return {"variance": float(values.var()), "entropy": float(entr(shares).sum())}


def worst(values: Iterable[float], higher_is_better: bool = True) -> float:
    """The worst domain's value: the smallest, or the largest where less is better. NaN counts as worst."""
    array = _vector(list(values), "values")
    return float(array.min() if higher_is_better else array.max())


def _ranking_metrics(table: Floats, truth: Integers, classes: Integers) -> dict[str, float]:
    """AUROC and average precision, each the mean over `classes`; every one of them has positives and negatives."""
    if classes.size == 0:
        return {}
    step = max(1, _BLOCK // truth.size)
    blocks = [_rank_block(table, truth, classes[i : i + step]) for i in range(0, classes.size, step)]
    auroc, precision = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return {"auroc": float(auroc.mean()), "average_precision": float(precision.mean())}


def _rank_block(table: Floats, truth: Integers, classes: Integers) -> tuple[Floats, Floats]:
    n = truth.size
    columns = -table.T[classes]
    order = columns.argsort(axis=1)
    ranked = np.take_along_axis(columns, order, axis=1)
    positive = truth[order] == classes[:, None]

    # Equal scores form a group that a threshold takes or leaves as a whole: places `start` to `end`, 0 being the top.
    changes = ranked[:, 1:] != ranked[:, :-1]
    edge = np.ones((classes.size, 1), dtype=bool)
    place = np.arange(n)
    start = np.maximum.accumulate(np.where(np.hstack([edge, changes]), place, 0), axis=1)
    end = np.minimum.accumulate(np.where(np.hstack([changes, edge]), place, n)[:, ::-1], axis=1)[:, ::-1]

    taken = positive.cumsum(axis=1)
    row, at = positive.nonzero()
    low = end[row, at]
    positives = np.bincount(row, minlength=classes.size)
    precision = np.bincount(row, weights=taken[row, low] / (low + 1.0)) / positives

    # Of what stands above the positives (half a tie counts as above), remove the positives: negatives ranked too high.
    above = np.bincount(row, weights=(start[row, at] + low) / 2.0) - positives * (positives - 1) / 2.0
    return 1.0 - above / (positives * (n - positives)), precision


def _probabilities(scores: ArrayLike) -> tuple[Floats, Floats]:
    """Scores as a float64 [n, K] table with K ≥ 2, and the smallest probability per class that the loss believes."""
    given: NDArray[Any] = np.asarray(scores)
    if given.ndim == 1:
        given = given[:, None]
    if given.ndim != 2 or 0 in given.shape:
        raise ValueError(f"scores must be a non-empty [examples, classes] table, not of shape {given.shape}")
    # What a float32 softmax can hold is taken at its word; only what underflowed to zero is lifted.
    tiny = float(np.finfo(np.float32).tiny)
    table = given.astype(np.float64)
    if table.shape[1] > 1:
        return table, np.full(table.shape[1], tiny)
    # One minus a probability near 1 is known no better than the spacing of floats there, or a sigmoid that rounded to
    # 1.0 would cost 87 nats where the logit says 17.
    spacing = float(np.finfo(given.dtype if given.dtype.kind == "f" else np.float64).epsneg)
    return np.hstack([1.0 - table, table]), np.array([spacing, tiny])


def _check_probabilities(table: Floats) -> None:
    if table.size == 0:
        return
    if table.min() < -1e-6 or table.max() > 1.0 + 1e-6 or np.abs(table.sum(axis=1) - 1.0).max() > 1e-2:
        raise ValueError("scores must be probabilities: each from 0 to 1, each row adding up to 1; apply softmax first")


def _class_numbers(labels: ArrayLike, n: int, classes: int) -> Integers:
    given = np.asarray(labels)
    truth = given.astype(np.int64).reshape(-1)
    if truth.size != n:
        raise ValueError(f"{n} rows of scores do not match {truth.size} labels")
    whole = given.dtype.kind != "f" or bool((given.reshape(-1) == truth).all())
    if truth.min() < 0 or truth.max() >= classes or not whole:
        raise ValueError(f"labels must be class numbers from 0 to {classes - 1}, not {np.unique(given).tolist()[:10]}")
    return truth


def _vector(values: ArrayLike, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} are empty")
    if array.ndim > 1 and array.size != array.shape[0]:
        raise ValueError(f"{name} must be one number each, not of shape {array.shape}")
    return array.reshape(-1)
