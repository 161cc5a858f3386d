"""How good a model is on one domain, from its scores and the true answers.

Everything is computed on scores, never on thresholded predictions, and over the whole domain at once, never as a mean
of batch means. A metric that the data cannot define (AUROC with one class only, R² with constant targets) is left out
of the result, so that no NaN reaches a table. Called after every evaluated round, hence vectorised over classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

if TYPE_CHECKING:  # for the annotation alone: reading records needs no torch
    from farfield.tasks.task import TaskKind

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

ECE_BINS = 15

# Scores ranked in one go; more are ranked a block of classes at a time, which bounds the memory.
_BLOCK = 1 << 20


def headline(kind: TaskKind) -> Literal["accuracy", "loss"]:
    """The metric by which models of this kind of task are chosen and compared."""
    if kind == "classification":
        return "accuracy"
    if kind == "regression":
        return "loss"
    raise ValueError(f"unknown kind of task '{kind}'; it is 'classification' or 'regression'")


def classification_metrics(scores: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Accuracy, macro-F1, loss, AUROC, average precision, calibration error and Brier score.

    `scores` is [n, K], one row of class probabilities per example; a single column (or a vector) is the probability of
    class 1. `labels` is [n], class numbers. Equal top scores go to the lowest class.

    - `macro_f1`: mean F1 over the classes that occur in `labels`; a class nobody has is not averaged in as zero.
    - `loss`: mean negative log likelihood in nats.
    - `auroc`, `average_precision`: of class 1 when there are two classes, else the mean over one-versus-rest problems
      of the classes that have positives and negatives. Left out when there is no such class.
    - `ece`: expected calibration error, 15 equal-width bins (a, b] of the top score.
    - `brier`: mean squared error of the probabilities; of class 1 for two classes (0 to 1), else summed over the
      classes (0 to 2).

    A row with a non-finite score, as a diverged model gives, counts as wrong and has the largest loss there is.
    The metrics that need every score (`auroc`, `average_precision`, `ece`, `brier`) are then left out.
    """
    table, floor = _probabilities(scores)
    n, classes = table.shape
    truth = _class_numbers(labels, n, classes)

    usable = np.isfinite(table).all(axis=1)
    complete = bool(usable.all())
    _check_probabilities(table if complete else table[usable])

    predicted = table.argmax(axis=1)
    own = table[np.arange(n), truth]
    if not complete:
        predicted = np.where(usable, predicted, -1)
        own = np.where(usable, own, 0.0)
    correct = predicted == truth

    occurs = np.bincount(truth, minlength=classes)
    guessed = np.bincount(predicted[usable], minlength=classes)
    hits = np.bincount(truth[correct], minlength=classes)
    present = occurs > 0
    metrics = {
        "accuracy": float(correct.mean()),
        "macro_f1": float((2.0 * hits[present] / (guessed + occurs)[present]).mean()),
        "loss": float(-np.log(np.maximum(own, floor[truth])).mean()),
    }
    if not complete:
        return metrics

    ranked = np.array([1]) if classes == 2 else np.arange(classes)
    metrics.update(_ranking_metrics(table, truth, ranked[(occurs[ranked] > 0) & (occurs[ranked] < n)]))

    confidence = table.max(axis=1)
    bins = np.clip(np.ceil(confidence * ECE_BINS).astype(np.int64) - 1, 0, ECE_BINS - 1)
    metrics["ece"] = float(np.abs(np.bincount(bins, weights=correct - confidence)).sum() / n)
    if classes == 2:
        metrics["brier"] = float(np.square(table[:, 1] - truth).mean())
    else:
        metrics["brier"] = float((np.square(table).sum(axis=1) - 2.0 * own + 1.0).mean())
    return metrics


def regression_metrics(predictions: ArrayLike, targets: ArrayLike) -> dict[str, float]:
    """Mean squared error (`loss`), R² and mean absolute error (`mae`) of one real target.

    Both are [n] or [n, 1]. `r2` is left out when the targets are constant or a prediction is not finite; in the latter
    case, as after divergence, `loss` and `mae` are infinite.
    """
    guess, truth = _vector(predictions, "predictions"), _vector(targets, "targets")
    if guess.size != truth.size:
        raise ValueError(f"{guess.size} predictions do not match {truth.size} targets")
    if not np.isfinite(truth).all():
        raise ValueError("targets hold a value that is not finite")
    if not np.isfinite(guess).all():
        return {"loss": float("inf"), "mae": float("inf")}
    error = guess - truth
    metrics = {"loss": float(np.square(error).mean()), "mae": float(np.abs(error).mean())}
    # The range tells constancy exactly; the variance of n equal numbers need not come out as zero.
    if np.ptp(truth) > 0:
        metrics["r2"] = 1.0 - metrics["loss"] / float(truth.var())
    return metrics


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
    if truth.min() < 0 or truth.max() >= classes or (given.dtype.kind == "f" and (given.reshape(-1) != truth).any()):
        raise ValueError(f"labels must be class numbers from 0 to {classes - 1}, not {np.unique(given).tolist()[:10]}")
    return truth


def _vector(values: ArrayLike, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} are empty")
    if array.ndim > 1 and array.size != array.shape[0]:
        raise ValueError(f"{name} must be one number each, not of shape {array.shape}")
    return array.reshape(-1)
