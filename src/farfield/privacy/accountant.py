"""From releases to ε, and from ε to a noise multiplier. The accountant is Google's `dp-accounting` (PLD).

    epsilon_of({Release(noise=6.0, rate=1.0, steps=1): 100}, delta=1e-5)        # 8.00
    noise_for(8.0, 1e-5, lambda noise: {Release(noise, 1.0, 1): 100})           # 6.00

The privacy loss distribution is discretised upwards, so ε is an upper bound that lies close to the exact value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from farfield.errors import UserError
from farfield.privacy.release import Release

#: So many different clients are accounted exactly; more are put into so many groups, each by its worst case.
MOST_DIFFERENT = 12
#: Noise multipliers are looked for between these: less is hardly any, and more drowns everything.
LEAST_NOISE, FIRST_NOISE, MOST_NOISE = 0.25, 32.0, 2.0**16
#: A noise multiplier is found to this relative precision.
PRECISION = 1e-3


class PrivacyError(UserError):
    """A privacy that cannot be accounted or cannot be had, in one sentence."""


def check_installed() -> None:
    """Refuse privacy where its accountant is not installed."""
    try:
        import dp_accounting  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise PrivacyError("differential privacy needs its accountant; install it with farfield[privacy]") from None


def epsilon_of(releases: Mapping[Release, int], delta: float) -> float:
    """Return ε at `delta` of all these releases together, each with how often it was made; infinity without noise."""
    merged: dict[tuple[float, float], int] = {}
    for release, count in releases.items():
        if release.steps and count and release.rate > 0:
            key = (release.noise, release.rate)
            merged[key] = merged.get(key, 0) + release.steps * count
    return _epsilon(tuple(sorted((*key, count) for key, count in merged.items())), delta)


@lru_cache(maxsize=4096)
def _epsilon(events: tuple[tuple[float, float, int], ...], delta: float) -> float:
    if not events:
        return 0.0
    if any(noise <= 0 for noise, _, _ in events):
        return math.inf
    check_installed()
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant  # type: ignore[import-untyped]

    accountant = PLDAccountant()
    for noise, rate, count in events:
        mechanism = GaussianDpEvent(noise)
        accountant.compose(mechanism if rate >= 1.0 else PoissonSampledDpEvent(rate, mechanism), count)
    return float(accountant.get_epsilon(delta))


def largest_epsilon(clients: Iterable[Mapping[Release, int]], delta: float) -> float:
    """Return the largest ε over clients. With many different clients it is an upper bound of it."""
    different = {tuple(sorted(of.items())) for of in clients}
    if len(different) <= MOST_DIFFERENT:
        return max((epsilon_of(dict(of), delta) for of in different), default=0.0)
    # A group's worst case has the highest rate, the lowest noise and the most steps of any of its clients.
    ordered = sorted(different, key=lambda of: max(release.rate for release, _ in of))
    size = math.ceil(len(ordered) / MOST_DIFFERENT)
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return max(epsilon_of(_worst(group), delta) for group in groups)


def _worst(group: Iterable[tuple[tuple[Release, int], ...]]) -> dict[Release, int]:
    clients = list(group)
    releases = [release for of in clients for release, _ in of]
    steps = max(sum(release.steps * count for release, count in of) for of in clients)
    return {Release(min(r.noise for r in releases), max(r.rate for r in releases), steps): 1}


def noise_for(epsilon: float, delta: float, releases: Callable[[float], Mapping[Release, int]]) -> float:
    """Return the smallest noise multiplier, to 0.1 %, with which what `releases` gives for it costs at most ε."""
    if not epsilon > 0:
        raise PrivacyError(f"epsilon = {epsilon:g}: give a number over 0")
    # From much noise to little: the accountant is quick where ε is small.
    high = FIRST_NOISE
    while epsilon_of(releases(high), delta) > epsilon:
        high *= 2
        if high > MOST_NOISE:
            raise PrivacyError(f"no noise multiplier up to {MOST_NOISE:g} gives ε = {epsilon:g}")
    while high / 2 >= LEAST_NOISE and epsilon_of(releases(high / 2), delta) <= epsilon:
        high /= 2
    low = high / 2
    while high - low > PRECISION * high and high > LEAST_NOISE:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(releases(middle), delta) > epsilon else (low, middle)
    return high
