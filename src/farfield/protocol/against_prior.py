"""Is a model any good? A method against `prior`, which always answers the commonest class, or the mean.

The question has one direction, so the test is one-sided at 5 %. The unit is the held-out domain from three domains on,
else the seed from five seeds on; below both there is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from farfield.protocol.comparison_units import Unit, Units, Values, domain_units, seed_units
from farfield.protocol.metrics import HIGHER_IS_BETTER
from farfield.protocol.significance import LEVEL, holm, holm_levels, mean_of

PriorVerdict = Literal["better than prior", "not better than prior beyond chance", "too few to say"]

#: What a constant answer scores by definition, whatever the data: it ranks nothing.
BY_DEFINITION = {"auroc": 0.5}


@dataclass(frozen=True)
class AgainstPrior:
    """A method minus `prior`. `bound` is the end of the one-sided interval on the side of `prior`."""

    verdict: PriorVerdict
    mean: float
    bound: float | None
    p_value: float | None
    n: int
    unit: Unit
    p_holm: float | None = None

    @property
    def better(self) -> bool:
        return self.verdict == "better than prior"


def better_than_prior(values: Values, prior_values: Values | None, metric: str) -> AgainstPrior:
    """Compare one method with `prior` on the same (held-out domain, seed) keys.

    For AUROC the prior scores 0.5 by definition, and `prior_values` may be None; every other metric needs them.
    """
    return compare_with_prior({"": values}, prior_values, metric)[""]


def compare_with_prior(
    methods: Mapping[str, Values], prior_values: Values | None, metric: str
) -> dict[str, AgainstPrior]:
    """Compare every method with `prior`, with verdicts that hold for all of them together (Holm)."""
    if prior_values is None and metric not in BY_DEFINITION:
        raise ValueError(f"what 'prior' scores in '{metric}' is not fixed by definition; give the values of its runs")
    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
    units = {name: _units(values, prior_values, metric) for name, values in methods.items()}
    p_values = {name: p for name, of in units.items() if (p := _p_value(of, sign)) is not None}
    adjusted, levels = holm(p_values), holm_levels(p_values)
    return {name: _judged(of, sign, levels.get(name, LEVEL), adjusted.get(name)) for name, of in units.items()}


def _units(values: Values, prior_values: Values | None, metric: str) -> Units:
    prior = dict.fromkeys(values, BY_DEFINITION[metric]) if metric in BY_DEFINITION else prior_values
    assert prior is not None
    domains, seeds = domain_units(values, prior), seed_units(values, prior)
    return domains if domains.enough or not seeds.enough else seeds


def _p_value(of: Units, sign: float) -> float | None:
    if not of.enough or not of.finite:
        return None
    mean, std, n = sign * mean_of(of.differences), of.std, len(of.differences)
    if std is None:  # no spread: the share of sign patterns that reach this mean
        return 0.5**n if mean > 0 else 1.0
    return float(stdtr(n - 1, -mean / (std / np.sqrt(n))))


def _judged(of: Units, sign: float, level: float, p_holm: float | None) -> AgainstPrior:
    n, std = len(of.differences), of.std
    mean, p_value = mean_of(of.differences), _p_value(of, sign)
    bound = None
    if p_value is not None and std is not None:
        bound = mean - sign * float(stdtrit(n - 1, 1.0 - level)) * std / float(np.sqrt(n))
    verdict: PriorVerdict = "too few to say"
    if p_value is not None and p_holm is not None:
        verdict = "better than prior" if p_holm < LEVEL else "not better than prior beyond chance"
    return AgainstPrior(verdict, mean, bound, p_value, n, of.unit, p_holm)
