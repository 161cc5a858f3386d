"""What a paired comparison counts as one observation: a held-out domain, or a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from farfield.protocol.significance import mean_of, sign_flip_p_value

Unit = Literal["domains", "seeds"]
#: A metric by (held-out domain, seed).
Values = Mapping[tuple[str, int], float]

#: Units that an interval and a verdict need.
MIN_UNITS = 3
MIN_SEEDS = 5
#: Relative size of what subtraction leaves behind: 0.8 - 0.7 and 0.7 - 0.6 differ by 1e-16, which is not evidence.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Units:
    """The differences that one comparison is made of, one per unit."""

    differences: NDArray[np.float64]
    unit: Unit
    pairs: int
    left_out: int
    #: How large the compared values are: a spread far below that is rounding.
    size: float
    baseline_mean: float
    #: Standard deviation of a domain's difference over seeds, and the seeds per domain; None with one seed.
    seed_std: float | None = None
    seeds: float = 1.0

    @property
    def enough(self) -> bool:
        return len(self.differences) >= (MIN_UNITS if self.unit == "domains" else MIN_SEEDS)

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.differences).all())

    @property
    def std(self) -> float | None:
        """The sample standard deviation; None for one unit, a non-finite value, or a spread that is rounding."""
        if len(self.differences) < 2 or not self.finite:
            return None
        std = float(self.differences.std(ddof=1))
        return std if std > ROUNDING * self.size else None

    @property
    def p_value(self) -> float | None:
        if not self.enough or not self.finite:
            return None
        std, n = self.std, len(self.differences)
        if std is None:
            return sign_flip_p_value(self.differences)
        return float(2.0 * stdtr(n - 1, -abs(mean_of(self.differences)) / (std / np.sqrt(n))))


def _shared(values: Values, baseline: Values) -> list[tuple[str, int]]:
    shared = sorted(values.keys() & baseline.keys())
    if not shared:
        raise ValueError(
            f"nothing to compare: {len(values)} results and {len(baseline)} of the baseline "
            "share no (held-out domain, seed)"
        )
    return shared


def domain_units(values: Values, baseline: Values) -> Units:
    """One difference per held-out domain, the mean over its seeds."""
    shared = _shared(values, baseline)
    by_domain: dict[str, list[float]] = {}
    for key in shared:
        by_domain.setdefault(key[0], []).append(_subtract(values[key], baseline[key]))
    groups = [np.array(of_domain) for of_domain in by_domain.values()]
    freedom = sum(len(of) - 1 for of in groups)
    differences = np.array([mean_of(of) for of in groups])
    seed_std = None
    if freedom and np.isfinite(differences).all():
        seed_std = float(np.sqrt(sum(float(np.square(of - of.mean()).sum()) for of in groups) / freedom))
    return Units(
        differences=differences,
        unit="domains",
        pairs=len(shared),
        left_out=len(values.keys() ^ baseline.keys()),
        size=max(abs(baseline[key]) + abs(values[key]) for key in shared),
        baseline_mean=mean_of(np.array([baseline[key] for key in shared])),
        seed_std=seed_std,
        seeds=1.0 / float(np.mean([1.0 / len(of) for of in groups])),
    )


def seed_units(values: Values, baseline: Values) -> Units:
    """One difference per seed, the mean over the domains."""
    shared = _shared(values, baseline)
    domains = {domain for domain, _ in shared}
    by_seed: dict[int, dict[str, float]] = {}
    for domain, seed in shared:
        by_seed.setdefault(seed, {})[domain] = _subtract(values[domain, seed], baseline[domain, seed])
    complete = {seed: of for seed, of in sorted(by_seed.items()) if of.keys() == domains}
    pairs = len(complete) * len(domains)
    return Units(
        differences=np.array([mean_of(np.array([of[d] for d in sorted(domains)])) for of in complete.values()]),
        unit="seeds",
        pairs=pairs,
        left_out=len(values.keys() | baseline.keys()) - pairs,
        size=max(abs(baseline[key]) + abs(values[key]) for key in shared),
        baseline_mean=mean_of(np.array([baseline[key] for key in shared])),
    )


def _subtract(value: float, baseline: float) -> float:
    difference = value - baseline
    return 0.0 if abs(difference) <= ROUNDING * abs(baseline) else difference
