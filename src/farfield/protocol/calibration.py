"""Whether a site's scores mean what they say: slope, intercept and curve (Van Calster et al., BMC Medicine 2019).

The slope is 1 where scores are neither too extreme (below 1) nor too timid (above 1). The intercept, also called
calibration in the large, is 0 where the mean score equals the share of events, above 0 where events are more frequent
than scored. For a number to predict, both are those of the straight line of truths on predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit

from farfield.protocol.row_intervals import NORMAL_95

Floats = NDArray[np.float64]

#: At most this many bins of a curve, each with at least this many rows.
MOST_BINS = 10
ROWS_PER_BIN = 20
NEWTON_STEPS = 50
_CLOSE = 1e-10
#: A gradient is about zero from here on: per row, and as its square in units of the standard error.
_FLAT = 1e-8
#: An intercept with a larger standard error than this (in log odds) is none.
WIDEST = 100.0
TOO_EXTREME = "the scores are too extreme to fit a line"


class NotDefined(ValueError):
    """There is no such figure for these rows; the message says why."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval over rows."""

    value: float
    low: float
    high: float


def logistic_slope(log_odds: Floats, events: NDArray[np.bool_]) -> Estimate:
    """Return the slope b of the recalibration logit P(event) = a + b · log odds, by Newton's method.

    Refused where all scores are equal, and where the scores separate the classes: the slope then has no bound.
    """
    if np.ptp(log_odds) == 0.0:
        raise NotDefined("all rows have the same score")
    positives, negatives = log_odds[events], log_odds[~events]
    if positives.min() >= negatives.max() or positives.max() <= negatives.min():
        raise NotDefined("the scores separate the two classes")
    centre, width = float(log_odds.mean()), float(log_odds.std())
    columns = np.stack([np.ones_like(log_odds), (log_odds - centre) / width], axis=1)
    coefficients, covariance = _logistic(columns, events)
    slope, error = coefficients[1] / width, covariance[1, 1] ** 0.5 / width
    return Estimate(float(slope), float(slope - NORMAL_95 * error), float(slope + NORMAL_95 * error))


def logistic_intercept(log_odds: Floats, events: NDArray[np.bool_]) -> Estimate:
    """Return the intercept a of logit P(event) = a + log odds, the slope being fixed at 1.

    Refused where all rows are of one class, and where the scores are so extreme that no row says where it lies.
    """
    count = int(events.sum())
    if not 0 < count < events.size:
        raise NotDefined("all rows are of one class")
    # If every row had the highest score, or the lowest, the intercept would be its distance from the share of events:
    # it lies between the two, and the expected events rise with it.
    middle = float(logit(count / events.size))
    ends = middle - float(log_odds.max()) - 1.0, middle - float(log_odds.min()) + 1.0
    value = float(brentq(lambda a: float(expit(a + log_odds).sum()) - count, *ends, xtol=_CLOSE))
    share = expit(value + log_odds)
    information = float((share * (1.0 - share)).sum())
    if information * WIDEST**2 < 1.0:
        raise NotDefined(TOO_EXTREME)
    error = information**-0.5
    return Estimate(value, value - NORMAL_95 * error, value + NORMAL_95 * error)


def straight_line(predictions: Floats, truths: Floats) -> tuple[float, float]:
    """Return slope and intercept of the least-squares line of truths on predictions."""
    if np.ptp(predictions) == 0.0:
        raise NotDefined("all rows have the same prediction")
    shifted = predictions - predictions.mean()
    slope = float(shifted @ truths / (shifted @ shifted))
    return slope, float(truths.mean() - slope * predictions.mean())


def curve(scores: Floats, truths: Floats) -> list[dict[str, Any]]:
    """Return the mean score and the mean truth in bins of about equal rows; rows with one score stay in one bin.

    Empty below two bins of 20 rows each: a curve of one point is the mean.
    """
    bins = min(MOST_BINS, scores.size // ROWS_PER_BIN)
    if bins < 2:
        return []
    order = np.argsort(scores, kind="stable")
    ordered, truth = scores[order], truths[order]
    # A cut is moved to the end of its run of equal scores.
    cuts = np.searchsorted(ordered, ordered[np.arange(1, bins) * scores.size // bins - 1], "right")
    ends = np.unique(np.append(cuts, scores.size))
    starts = np.append(0, ends[:-1])
    sizes = ends - starts
    means, shares = np.add.reduceat(ordered, starts) / sizes, np.add.reduceat(truth, starts) / sizes
    return [
        {
            "low": float(ordered[a]),
            "high": float(ordered[b - 1]),
            "rows": int(b - a),
            "mean_score": float(m),
            "share": float(s),
        }
        for a, b, m, s in zip(starts, ends, means, shares, strict=True)
    ]


def _logistic(columns: Floats, events: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Fit a logistic regression by Newton's method with halved steps; return coefficients and their covariance.

    A small step is no proof of an optimum where steps were halved, so the gradient there must be about zero, as counted
    in rows and in standard errors.
    """
    truth = events.astype(np.float64)
    coefficients = np.zeros(columns.shape[1])
    loss = _loss(columns @ coefficients, truth)
    for _ in range(NEWTON_STEPS):
        gradient, information = _score(columns, columns @ coefficients, truth)
        step = _solved(information, gradient)
        size = 1.0
        while (after := _loss(columns @ (coefficients + size * step), truth)) > loss and size > _CLOSE:
            size /= 2.0
        coefficients = coefficients + size * step
        loss = min(loss, after)
        if float(np.abs(step).max()) < _CLOSE * (1.0 + float(np.abs(coefficients).max())) or size <= _CLOSE:
            break
    gradient, information = _score(columns, columns @ coefficients, truth)
    covariance = _solved(information, np.eye(len(coefficients)))
    flat = float(np.abs(gradient).max()) <= _FLAT * truth.size
    if not flat or not 0.0 <= float(gradient @ covariance @ gradient) <= _FLAT:
        raise NotDefined(TOO_EXTREME)
    return coefficients, covariance


def _score(columns: Floats, log_odds: Floats, truth: Floats) -> tuple[Floats, Floats]:
    """Return the gradient of the log likelihood and its information at these log odds."""
    share = expit(log_odds)
    return columns.T @ (truth - share), (columns * (share * (1.0 - share))[:, None]).T @ columns


def _solved(information: Floats, right: Floats) -> Floats:
    try:
        return np.asarray(np.linalg.solve(information, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise NotDefined(TOO_EXTREME) from None


def _loss(log_odds: Floats, truth: Floats) -> float:
    return float(np.logaddexp(0.0, np.where(truth > 0, -log_odds, log_odds)).sum())
