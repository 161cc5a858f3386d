"""What a comparison could have found: the smallest detectable difference, and what a smaller one would need.

"Within chance" alone says little: a bench of four domains calls almost everything within chance. The smallest true
difference that a paired t-test with these units, this spread and this level finds in 80 % of benches says how little.
It is computed from the noncentral t distribution with the observed spread, which is itself rough with few units: read
it as "about".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

from scipy.special import nctdtr, stdtrit

from farfield.protocol.metrics import PERCENT

#: How often a difference of the detectable size is found.
POWER = 0.8
#: More units than this are not worth naming.
MOST_UNITS = 1000
#: The difference that `needed` speaks of: two points of a share, or a part of the baseline's mean for anything else.
TARGET_SHARE = 0.02
TARGET_PART = 0.05
_AROUND_ONE = frozenset({"auroc", "average_precision", "ece", "brier", "r2"})


@dataclass(frozen=True)
class Target:
    """A difference that a reader would care about: its size in the metric's unit, and how a sentence names it."""

    size: float
    text: str


def target_for(metric: str | None, baseline_mean: float) -> Target | None:
    """Return the difference to plan for: 2 points of a share, 5 % of the baseline's mean of anything else.

    None where the baseline's mean is zero or not finite, because 5 % of it is then no difference at all.
    """
    if metric is None or metric in PERCENT:
        return Target(TARGET_SHARE, "2 points")
    if metric in _AROUND_ONE:
        return Target(TARGET_SHARE, f"{TARGET_SHARE:g}")
    size = TARGET_PART * abs(baseline_mean)
    return Target(size, f"{size:.3g} (5 % of the baseline's mean)") if 0 < size < float("inf") else None


def power(difference: float, std: float, n: int, level: float) -> float:
    """Return how often a two-sided paired t-test over `n` units at `level` finds a true `difference`.

    `std` is the standard deviation of the units' differences.
    """
    if n < 2 or std <= 0:
        raise ValueError(f"power needs at least two units and a spread above zero, not {n} units and a spread of {std}")
    return _power(abs(difference) * sqrt(n) / std, n, level)


def detectable(std: float, n: int, level: float) -> float:
    """Return the smallest true difference that a two-sided paired t-test at `level` finds with 80 % power."""
    return _noncentrality(n, level) * std / sqrt(n)


def units_needed(size: float, std: float, level: float, at_least: int = 3) -> int | None:
    """Return how many units with this spread find a true difference of `size` with 80 % power; None above 1,000."""
    if detectable(std, MOST_UNITS, level) > size:
        return None
    low, high = at_least - 1, MOST_UNITS  # `low` is too few (or below what may be asked for), `high` is enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detectable(std, middle, level) <= size else (middle, high)
    return high


def seeds_needed(size: float, std: float, n: int, level: float, seed_std: float, seeds: float) -> int | None:
    """Return how many seeds per domain bring the detectable difference over the same `n` domains down to `size`.

    A domain's difference varies by itself and by its seeds: variance = domains' own + `seed_std`² / seeds. Seeds reduce
    the second part alone. None where the first part is too large already, or where more than 1,000 would be needed.
    """
    own = max(0.0, std**2 - seed_std**2 / seeds)
    allowed = (size * sqrt(n) / _noncentrality(n, level)) ** 2 - own
    if allowed <= 0 or seed_std**2 / allowed > MOST_UNITS:
        return None
    # A tiny share is taken off, so that a quotient that is whole up to rounding is not rounded up.
    return max(1, -int(-(seed_std**2 / allowed * (1 - 1e-9)) // 1))


def domains_sentence(
    target: Target, std: float, n: int, level: float, seed_std: float | None = None, seeds: float = 1.0
) -> str:
    """Say what finding the target for a *new domain* would take: domains, or seeds where these make up the spread."""
    if detectable(std, n, level) <= target.size:
        return f"A true difference of {target.text} would have been found in at least 8 of 10 such benches."
    domains = units_needed(target.size, std, level, at_least=n + 1)
    many = f"more than {MOST_UNITS:,}" if domains is None else f"about {domains:,}"
    text = f"To find a true difference of {target.text} in 8 of 10 benches, {many} domains are needed (here: {n})"
    if seed_std is None:
        return f"{text}; with one seed it is not known how much more seeds would help."
    more = seeds_needed(target.size, std, n, level, seed_std, seeds)
    if more is None:
        return f"{text}; no number of seeds helps, because domains are the unit."
    return f"{text}, or about {more:,} seeds for each of these {n} (here: {seeds:.3g})."


def seeds_sentence(target: Target, std: float, n: int, level: float) -> str:
    """Say what finding the target *on these domains* would take."""
    if detectable(std, n, level) <= target.size:
        return f"A true difference of {target.text} would have been found in at least 8 of 10 such benches."
    seeds = units_needed(target.size, std, level, at_least=n + 1)
    many = f"more than {MOST_UNITS:,}" if seeds is None else f"about {seeds:,}"
    return f"To find a true difference of {target.text} on these domains, {many} seeds are needed (here: {n})."


def _power(noncentrality: float, n: int, level: float) -> float:
    df = n - 1
    bar = float(stdtrit(df, 1.0 - level / 2.0))
    far = float(nctdtr(df, noncentrality, -bar))
    # Where the far tail is too small for the library it is not a number, and nothing.
    return 1.0 - float(nctdtr(df, noncentrality, bar)) + (far if far > 0.0 else 0.0)


@lru_cache(maxsize=4096)
def _noncentrality(n: int, level: float) -> float:
    """Return the noncentrality at which the test has 80 % power, by bisection."""
    low, high = 0.0, 2.0 + 2.0 * float(stdtrit(n - 1, 1.0 - level / 2.0))
    while _power(high, n, level) < POWER:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _power(middle, n, level) < POWER else (low, middle)
    return high
