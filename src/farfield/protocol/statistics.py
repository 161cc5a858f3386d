"""How sure a result is: intervals, and paired differences to a baseline.

Two questions are kept apart, because they have different answers:

- Is a method better for a *new domain*? (`paired_difference`, `compare`.) Seeds of one held-out domain share the
  domain, its training domains and its test data; they say how much a rerun varies, not how much a new domain varies.
  Six domains with three seeds are six observations, not eighteen: each domain's seeds are averaged first. Below three
  domains there is no answer.
- Is it better *on these domains*? (`on_these_domains`, `compare_on_these_domains`.) The domains are fixed and only the
  seeds vary: the mean over domains of each seed is one observation. Below five seeds there is no answer.

What this does not repair: leave-one-domain-out runs share most of their training domains, so even domains are not
quite independent, and no unbiased variance exists for that (Bengio and Grandvalet, JMLR 2004). How much it matters is
measured by `studies/false_alarms.py`. Read a p-value close to 0.05 as weak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from farfield.protocol.comparison_units import MIN_SEEDS, MIN_UNITS, Unit, Units, Values, domain_units, seed_units
from farfield.protocol.power import detectable, domains_sentence, seeds_sentence, target_for
from farfield.protocol.significance import LEVEL, half_width, holm, holm_levels, mean_of, sign_flip_p_value

Verdict = Literal["better", "worse", "no difference beyond chance", "too few to say"]
#: What must be said beside a verdict of "better" or "worse" over domains; `studies/false_alarms.py` has the figures.
SHARED_TRAINING_NOTE = (
    "Runs on different held-out domains share most of their training domains, so domains are not quite independent: in "
    "a simulation with six domains under strong shift, 11 % of methods without any effect were called better or worse "
    "instead of 5 %. Read a p close to 0.05 as weak."
)


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation and 95 % t-interval.

    One value has no spread: `std` is None. Below three values `low` and `high` are None: a t-interval of two is twelve
    standard deviations wide to each side and says nothing.
    """

    mean: float
    std: float | None
    n: int
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """A method minus its baseline, over what both were run on.

    `mean` is over the `n` units, `low` and `high` are its t-interval at `level`, the level at which this method was
    tested: 0.05 alone, less where Holm's correction applies. Interval and verdict therefore always agree. `alone` is
    the 95 % interval without the correction. `p_value` is the two-sided t-test. `p_sign_flip` asks the same without
    assuming a normal distribution: how often random signs give a mean at least as large. It cannot go below 2 / 2**n:
    under six units it never reaches 0.05 whatever the data say, which is why the verdict follows `p_value`, or `p_holm`
    where several methods were compared at once.

    None stands where a number does not exist: interval and `p_value` for too few units or a non-finite value. When all
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
    #: (held-out domain, seed) pairs that were compared, and those that were not because one of the two lacks them.
    pairs: int
    left_out: int
    p_sign_flip: float | None
    #: `p_value` after Holm's correction over the methods compared together; None when compared alone.
    p_holm: float | None = None
    higher_is_better: bool = True
    level: float = LEVEL
    alone: tuple[float, float] | None = None
    #: Standard deviation of the units' differences.
    std: float | None = None
    #: The smallest true difference that this comparison finds with 80 % power; None without spread or verdict.
    detectable: float | None = None
    #: One sentence: what more would be needed. Empty where the verdict is "better" or "worse".
    needed: str = ""


def summary(values: Iterable[float]) -> Summary:
    """Mean, sample standard deviation and, from three values, the 95 % t-interval of `values`.

    A non-finite value (a diverged run) stays visible as a non-finite mean without interval; it is not dropped.
    """
    array = np.asarray(list(values), dtype=np.float64)
    if array.size == 0:
        raise ValueError("cannot summarise no values at all")
    if array.size == 1 or not np.isfinite(array).all():
        return Summary(mean_of(array), None, array.size, None, None)
    mean, std = mean_of(array), float(array.std(ddof=1))
    if array.size < MIN_UNITS:
        return Summary(mean, std, array.size, None, None)
    half = half_width(std, array.size, LEVEL)
    return Summary(mean, std, array.size, mean - half, mean + half)


def paired_difference(
    values: Values, baseline: Values, higher_is_better: bool = True, metric: str | None = None
) -> Difference:
    """Answer for a new domain: `values` minus `baseline` over the (held-out domain, seed) keys that both have.

    The sign is always method minus baseline; `higher_is_better` decides whether that is "better" or "worse". Under
    three domains the verdict is "too few to say". Keys that only one side has are not compared, and are counted.
    `metric` says in which unit `needed` speaks: percentage points where it is omitted.
    """
    return _difference(domain_units(values, baseline), higher_is_better, metric)


def on_these_domains(
    values: Values, baseline: Values, higher_is_better: bool = True, metric: str | None = None
) -> Difference:
    """Answer for reruns on the same domains: the mean over domains of each seed is the unit.

    Only seeds that both have on every shared domain count. Under five of these the verdict is "too few to say".
    """
    return _difference(seed_units(values, baseline), higher_is_better, metric)


def compare(
    methods: Mapping[str, Values], baseline: Values, higher_is_better: bool = True, metric: str | None = None
) -> dict[str, Difference]:
    """Every method against one baseline for a new domain, with verdicts that hold for all of them together (Holm).

    Each interval is at the level at which Holm's procedure tested that method, so interval and verdict agree.
    """
    return _compare(domain_units, methods, baseline, higher_is_better, metric)


def compare_on_these_domains(
    methods: Mapping[str, Values], baseline: Values, higher_is_better: bool = True, metric: str | None = None
) -> dict[str, Difference]:
    """Every method against one baseline on these domains, corrected in the same way."""
    return _compare(seed_units, methods, baseline, higher_is_better, metric)


def _compare(
    units_of: Callable[[Values, Values], Units],
    methods: Mapping[str, Values],
    baseline: Values,
    higher_is_better: bool,
    metric: str | None,
) -> dict[str, Difference]:
    units = {name: units_of(values, baseline) for name, values in methods.items()}
    p_values = {name: p for name, of in units.items() if (p := of.p_value) is not None}
    adjusted, levels = holm(p_values), holm_levels(p_values)
    return {
        name: _difference(of, higher_is_better, metric, levels.get(name, LEVEL), adjusted.get(name))
        for name, of in units.items()
    }


def _difference(
    of: Units, higher_is_better: bool, metric: str | None, level: float = LEVEL, p_holm: float | None = None
) -> Difference:
    n, std, p_value = len(of.differences), of.std, of.p_value
    mean = mean_of(of.differences) if n else float("nan")
    low = high = smallest = None
    alone: tuple[float, float] | None = None
    if p_value is not None and std is not None:
        half = half_width(std, n, level)
        low, high, alone = mean - half, mean + half, _around(mean, half_width(std, n, LEVEL))
        smallest = detectable(std, n, level)
    elif p_value is not None and mean == 0.0:
        low = high = 0.0
        alone = (0.0, 0.0)
    verdict = _verdict(mean, p_value if p_holm is None else p_holm, higher_is_better)
    return Difference(
        mean=mean,
        low=low,
        high=high,
        p_value=p_value,
        n=n,
        verdict=verdict,
        unit=of.unit,
        pairs=of.pairs,
        left_out=of.left_out,
        p_sign_flip=sign_flip_p_value(of.differences) if n and of.finite else None,
        p_holm=p_holm,
        higher_is_better=higher_is_better,
        level=level,
        alone=alone,
        std=std,
        detectable=smallest,
        needed="" if verdict in ("better", "worse") else _needed(of, std, level, metric),
    )


def _needed(of: Units, std: float | None, level: float, metric: str | None) -> str:
    n = len(of.differences)
    if not of.finite:
        return "A run diverged, so nothing can be compared."
    if not of.enough and of.unit == "domains":
        return f"Too few domains to say for a new one; {MIN_UNITS} held-out domains are needed (here: {n})."
    if not of.enough:
        return f"Too few seeds to say; {MIN_SEEDS} are needed (here: {n})."
    if std is None:
        same = "the same on every" if mean_of(of.differences) else "zero on every"
        return f"The difference is {same} one of the {n} {of.unit}, so there is no spread to measure chance by."
    target = target_for(metric, of.baseline_mean)
    if target is None:
        return ""
    if of.unit == "seeds":
        return seeds_sentence(target, std, n, level)
    return domains_sentence(target, std, n, level, of.seed_std, of.seeds)


def _verdict(mean: float, p: float | None, higher_is_better: bool) -> Verdict:
    if p is None:
        return "too few to say"
    if p >= LEVEL:
        return "no difference beyond chance"
    return "better" if (mean > 0) == higher_is_better else "worse"


def _around(mean: float, half: float) -> tuple[float, float]:
    return mean - half, mean + half
