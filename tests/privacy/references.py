"""Reference calculations of ε and δ that share no code with the accountant."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Floats = NDArray[np.float64]


def gaussian_delta(epsilon: float, noise: float, times: int = 1) -> float:
    """δ of `times` Gaussian mechanisms of sensitivity 1 (Balle and Wang 2018, theorem 8; k of them are one at σ/√k)."""
    sigma = noise / math.sqrt(times)
    a, b = 1 / (2 * sigma), epsilon * sigma
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


def epsilon_from(delta_of: Callable[[float], float], delta: float) -> float:
    """The smallest ε with δ(ε) ≤ δ, by bisection."""
    low, high = 0.0, 1.0
    while delta_of(high) > delta:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def renyi_bound(noise: float, times: int, delta: float) -> float:
    """The bound of Mironov 2017 for Gaussians: min over α of α k / (2σ²) + log(1/δ) / (α − 1)."""
    rho = times / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def sampled_delta(epsilon: float, noise: float, rate: float) -> float:
    """δ of one Gaussian mechanism on rows drawn with probability q, in closed form, the worse of adding and removing.

    P = (1 − q) N(0, σ²) + q N(1, σ²) and Q = N(0, σ²): their ratio grows with x, so each region is a half-line.
    """

    def crossing(ratio: float) -> float:
        inner = (ratio - (1 - rate)) / rate
        return -math.inf if inner <= 0 else 0.5 + noise**2 * math.log(inner)

    def tail(x: float, mean: float) -> float:
        return float(norm.sf((x - mean) / noise))

    x, e = crossing(math.exp(epsilon)), math.exp(epsilon)
    removing = (1 - rate) * tail(x, 0) + rate * tail(x, 1) - e * tail(x, 0)
    x = crossing(math.exp(-epsilon))
    adding = (1 - tail(x, 0)) - e * ((1 - rate) * (1 - tail(x, 0)) + rate * (1 - tail(x, 1)))
    return max(removing, adding)


def composed_delta(epsilon: float, noise: float, rate: float, times: int) -> float:
    """δ of many such mechanisms, by convolving the distribution of the privacy loss on a grid (rounded to nearest)."""
    found = []
    for removing in (True, False):
        losses, total = _convolved(noise, rate, times, removing)
        above = losses > epsilon
        found.append(float((total[above] * -np.expm1(epsilon - losses[above])).sum()))
    return max(found)


@cache
def _convolved(noise: float, rate: float, times: int, removing: bool, step: float = 2e-3) -> tuple[Floats, Floats]:
    """The sum of so many privacy losses: the values of a grid and their probabilities."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    middle = (x[:-1] + x[1:]) / 2
    base = np.diff(norm.cdf(x / noise))
    mixed = (1 - rate) * base + rate * np.diff(norm.cdf((x - 1) / noise))
    ratio = np.log1p(rate * np.expm1((2 * middle - 1) / (2 * noise**2)))
    loss, mass = (ratio, mixed) if removing else (-ratio, base)
    size = 1 << 16
    places = np.rint(loss / step).astype(int)
    grid = np.bincount(places % size, weights=mass, minlength=size)
    total = np.fft.irfft(np.fft.rfft(grid) ** times, size).clip(min=0)
    return np.fft.fftfreq(size, 1 / size) * step, total  # places beyond the middle are negative losses
