"""Tests and corrections that verdicts rest on: t-intervals, sign flips, Holm's procedure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

LEVEL = 0.05
EXACT_UNITS = 14
MONTE_CARLO_DRAWS = (1 << EXACT_UNITS) - 1


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: p-values that may each be held against one level, in the order given."""
    for name, p in p_values.items():
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"the p-value of '{name}' is {p}; it must lie between 0 and 1")
    adjusted: dict[str, float] = {}
    running = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}


def holm_levels(p_values: Mapping[str, float], level: float = LEVEL) -> dict[str, float]:
    """The level at which Holm's procedure holds each p-value: level / m, level / (m - 1), … until one is not below.

    What comes after the first that is not below its level is held to that same level. An interval at this level leaves
    out zero exactly where the adjusted p-value is below `level`.
    """
    adjusted = holm(p_values)
    rejected = sum(p < level for p in adjusted.values())
    order = sorted(p_values, key=lambda key: p_values[key])
    steps = {name: level / (len(order) - min(rank, rejected)) for rank, name in enumerate(order)}
    return {name: steps[name] for name in p_values}


def sign_flip_p_value(differences: Iterable[float], seed: int = 0) -> float:
    """Two-sided permutation p-value: if signs were chance, how often is |mean| at least what was seen?

    Exact over all sign patterns up to 14 differences; beyond that 16 383 seeded random patterns, counting the observed
    one so that the value is never zero.
    """
    array = np.asarray(list(differences), dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("a sign-flip test needs at least one difference, all of them finite")
    # Patterns with the same sum in exact arithmetic must tie, however their additions round.
    bar = abs(array.sum()) - 1e-9 * np.abs(array).sum()
    if array.size <= EXACT_UNITS:
        patterns = np.arange(1 << array.size)[:, None] >> np.arange(array.size)
        flipped = np.where(patterns & 1, -array, array).sum(axis=1)
        return float((np.abs(flipped) >= bar).mean())
    signs = np.random.default_rng(seed).integers(0, 2, size=(MONTE_CARLO_DRAWS, array.size), dtype=np.int8)
    flipped = (2.0 * signs - 1.0) @ array
    return float((1 + np.count_nonzero(np.abs(flipped) >= bar)) / (1 + MONTE_CARLO_DRAWS))


def mean_of(array: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):
        return float(array.mean())


def half_width(std: float, n: int, level: float) -> float:
    """Half the width of the t-interval of a mean of `n` values."""
    return float(stdtrit(n - 1, 1.0 - level / 2.0)) * std / float(np.sqrt(n))
