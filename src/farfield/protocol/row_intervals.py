"""Intervals over the rows of one site: how sure its figure is for other rows there, not for other sites."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

LEVEL = 0.05
#: The standard normal's quantile at 1 - LEVEL / 2.
NORMAL_95 = 1.959963984540054
BOOTSTRAP_DRAWS = 1000


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `n` independent rows: right for few rows, and for shares near 0 and 1."""
    if n < 1 or not 0 <= share <= 1:
        raise ValueError(f"a share lies between 0 and 1 and has at least one row, not {share} of {n}")
    z2 = NORMAL_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL_95 / (1 + z2 / n) * (share * (1 - share) / n + z2 / (4 * n * n)) ** 0.5
    # At 0 and at 1 the formula gives the bound itself, up to a last digit.
    return (0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half)


def bootstrap_interval(values: Iterable[float], seed: int = 0) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap interval of a mean over rows; None for one row or a value that is not finite."""
    array = np.asarray(list(values), dtype=np.float64)
    if len(array) < 2 or not np.isfinite(array).all():
        return None
    draw = np.random.default_rng(seed)
    means = [array[draw.integers(0, len(array), len(array))].mean() for _ in range(BOOTSTRAP_DRAWS)]
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)
