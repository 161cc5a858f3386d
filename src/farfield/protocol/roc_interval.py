"""The AUROC of one site with its interval over rows (DeLong, DeLong and Clarke-Pearson, Biometrics 1988)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from farfield.protocol.row_intervals import NORMAL_95

Floats = NDArray[np.float64]


def placements(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return for each positive the share of negatives below it, and for each negative the share of positives above it.

    A tie counts as half. The mean of either is the AUROC; their variances are what DeLong's interval is made of.
    """
    high, low = np.sort(positives), np.sort(negatives)
    of_positives = (np.searchsorted(low, positives, "left") + np.searchsorted(low, positives, "right")) / (
        2.0 * low.size
    )
    below = (np.searchsorted(high, negatives, "left") + np.searchsorted(high, negatives, "right")) / (2.0 * high.size)
    return of_positives, 1.0 - below


def auroc_interval(positives: Floats, negatives: Floats) -> tuple[float, float | None, float | None]:
    """Return the AUROC and its 95 % DeLong interval, made on the logit scale so that it stays between 0 and 1.

    There is no interval where rows of a class are fewer than two, or where the ranking is perfect or perfectly wrong.
    """
    of_positives, of_negatives = placements(positives, negatives)
    value = float(of_positives.mean())
    if positives.size < 2 or negatives.size < 2:
        return value, None, None
    variance = of_positives.var(ddof=1) / positives.size + of_negatives.var(ddof=1) / negatives.size
    return value, *_on_the_logit_scale(value, float(variance))


def macro_auroc_interval(scores: Floats, truth: NDArray[np.int64]) -> tuple[float, float | None, float | None] | None:
    """Return the mean over classes of their AUROC against the rest, with its interval; None with one class only.

    `scores` is [n, K]. Classes without rows, or with all of them, are left out. The interval adds up what each row
    contributes to the AUROC of every class, which for one class is DeLong's.
    """
    n = truth.size
    counts = np.bincount(truth, minlength=scores.shape[1])
    classes = np.flatnonzero((counts > 0) & (counts < n))
    if classes.size == 0:
        return None
    values, influence = [], np.zeros(n)
    for k in classes:
        own = truth == k
        of_positives, of_negatives = placements(scores[own, k], scores[~own, k])
        value = float(of_positives.mean())
        values.append(value)
        influence[own] += (of_positives - value) / counts[k]
        influence[~own] += (of_negatives - value) / (n - counts[k])
    mean = float(np.mean(values))
    return mean, *_on_the_logit_scale(mean, float(np.square(influence / classes.size).sum()))


def _on_the_logit_scale(value: float, variance: float) -> tuple[float | None, float | None]:
    if not 0.0 < value < 1.0 or variance <= 0.0:
        return None, None
    half = NORMAL_95 * variance**0.5 / (value * (1.0 - value))
    return float(expit(logit(value) - half)), float(expit(logit(value) + half))
