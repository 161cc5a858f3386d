"""How sure a result is: intervals, and paired differences to a baseline.

Runs come in (held-out domain, seed) pairs, and the pairs are not independent. Seeds of one held-out domain share the
domain, its training domains and its test data; they say how much a rerun varies, not how much a *new domain* varies.
Six domains with three seeds are therefore six observations of what a reader asks about, not eighteen. With at least
three domains in common, `paired_difference` first averages over the seeds of each domain and tests over domains. With
fewer it falls back to pairs, whose answer holds for reruns on those same domains only; `unit` says which was used.

What this does not repair: leave-one-domain-out runs share most of their training domains, so even domains are not
quite independent, and no unbiased variance exists for that (Bengio and Grandvalet, JMLR 2004). Read a p-value close
to 0.05 as weak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Verdict = Literal["better", "worse", "no difference beyond chance", "too few to say"]
Unit = Literal["domains", "pairs"]

LEVEL = 0.05
#: The standard normal's quantile at 1 - LEVEL / 2.
NORMAL_95 = 1.959963984540054
BOOTSTRAP_DRAWS = 1000
MIN_UNITS = 3
EXACT_UNITS = 14
MONTE_CARLO_DRAWS = (1 << EXACT_UNITS) - 1
#: Relative size of what subtraction leaves behind: 0.8 - 0.7 and 0.7 - 0.6 differ by 1e-16, which is not evidence.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation and 95 % t-interval. One value has no spread: `std`, `low`, `high` are None."""

    mean: float
    std: float | None
    n: int
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """A method minus its baseline, over what both were run on.

    `mean`, `low`, `high` are the mean and the 95 % t-interval over the `n` units; `p_value` is the two-sided t-test
    that belongs to the interval. `p_sign_flip` asks the same without assuming a normal distribution: how often random
    signs give a mean at least as large. It cannot go below 2 / 2**n, so under six units it never reaches 0.05 whatever
    the data say, which is why the verdict follows `p_value`, or `p_holm` where several methods were compared at once.

    None stands where a number does not exist: interval and `p_value` for one unit or a non-finite value. When all
    differences are the same non-zero number there is no spread to measure chance by: a t-test would call it
    certain, so there is no interval and `p_value` is the sign-flip one.
    """

    mean: float
    low: float | None
    high: float | None
    p_value: float | None
    n: int
    verdict: Verdict
    unit: Unit
    #: (held-out domain, seed) pairs that both have, and those that only one of the two has.
    pairs: int
    left_out: int
    p_sign_flip: float | None
    #: `p_value` after Holm's correction over the methods compared together; None when compared alone.
    p_holm: float | None = None
    higher_is_better: bool = True


def summary(values: Iterable[float]) -> Summary:
    """Mean, sample standard deviation and 95 % t-interval of `values`.

    A non-finite value (a diverged run) stays visible as a non-finite mean without interval; it is not dropped.
    """
    array = np.asarray(list(values), dtype=np.float64)
    if array.size == 0:
        raise ValueError("cannot summarise no values at all")
    if array.size == 1 or not np.isfinite(array).all():
        return Summary(_mean(array), None, array.size, None, None)
    mean, std, half = _mean_spread(array)
    return Summary(mean, std, array.size, mean - half, mean + half)


def paired_difference(
    values: Mapping[tuple[str, int], float],
    baseline: Mapping[tuple[str, int], float],
    higher_is_better: bool = True,
) -> Difference:
    """`values` minus `baseline` over the (held-out domain, seed) keys that both have.

    The sign is always method minus baseline; `higher_is_better` decides whether that is "better" or "worse". Under
    three units the verdict is "too few to say". Keys that only one side has are not compared, and are counted.
    """
    shared = sorted(values.keys() & baseline.keys())
    if not shared:
        raise ValueError(
            f"nothing to compare: {len(values)} results and {len(baseline)} of the baseline "
            "share no (held-out domain, seed)"
        )
    by_domain: dict[str, list[float]] = {}
    for key in shared:
        by_domain.setdefault(key[0], []).append(_subtract(values[key], baseline[key]))
    unit: Unit = "domains" if len(by_domain) >= MIN_UNITS else "pairs"
    if unit == "domains":
        differences = np.array([_mean(np.array(of_domain)) for of_domain in by_domain.values()])
    else:
        differences = np.array([d for of_domain in by_domain.values() for d in of_domain])

    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    flip = sign_flip_p_value(differences) if np.isfinite(differences).all() else None
    mean = _mean(differences)
    if flip is not None and differences.size > 1:
        mean, std, half = _mean_spread(differences)
        if std > ROUNDING * max(abs(baseline[key]) + abs(values[key]) for key in shared):
            low, high = mean - half, mean + half
            df = differences.size - 1
            p_value = float(2.0 * stdtr(df, -abs(mean) / (std / np.sqrt(differences.size))))
        else:
            p_value = flip
            if mean == 0.0:
                low = high = 0.0
    return Difference(
        mean=mean,
        low=low,
        high=high,
        p_value=p_value,
        n=differences.size,
        verdict=_verdict(mean, differences.size, p_value, higher_is_better),
        unit=unit,
        pairs=len(shared),
        left_out=len(values.keys() ^ baseline.keys()),
        p_sign_flip=flip,
        higher_is_better=higher_is_better,
    )


def compare(
    methods: Mapping[str, Mapping[tuple[str, int], float]],
    baseline: Mapping[tuple[str, int], float],
    higher_is_better: bool = True,
) -> dict[str, Difference]:
    """Every method against one baseline, with verdicts that hold for all of them together (Holm).

    The intervals stay those of each method alone; a method can exclude zero and still not be called better.
    """
    alone = {name: paired_difference(values, baseline, higher_is_better) for name, values in methods.items()}
    adjusted = holm({name: d.p_value for name, d in alone.items() if d.p_value is not None})
    return {
        name: replace(d, p_holm=adjusted[name], verdict=_verdict(d.mean, d.n, adjusted[name], higher_is_better))
        if name in adjusted
        else d
        for name, d in alone.items()
    }


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


def _verdict(mean: float, n: int, p: float | None, higher_is_better: bool) -> Verdict:
    if n < MIN_UNITS or p is None:
        return "too few to say"
    if p >= LEVEL:
        return "no difference beyond chance"
    return "better" if (mean > 0) == higher_is_better else "worse"


def _subtract(value: float, baseline: float) -> float:
    difference = value - baseline
    return 0.0 if abs(difference) <= ROUNDING * abs(baseline) else difference


def _mean(array: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):
        return float(array.mean())


def _mean_spread(array: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean, sample standard deviation, and half the width of the 95 % t-interval."""
    std = float(array.std(ddof=1))
    return (
        float(array.mean()),
        std,
        float(stdtrit(array.size - 1, 1.0 - LEVEL / 2.0)) * std / float(np.sqrt(array.size)),
    )


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
