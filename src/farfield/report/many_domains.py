"""A bench with many held-out domains: quartiles take the place of a column per domain."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import quantiles

from farfield.protocol.statistics import Summary

#: Above this number of held-out domains a table shows quartiles instead of a column per domain.
MANY_DOMAINS = 20


def quartiles(domains: Iterable[Summary | None]) -> tuple[float, float, float] | None:
    """Return the quartiles of the domains' means; None where fewer than four are finite."""
    means = [of.mean for of in domains if of is not None and math.isfinite(of.mean)]
    if len(means) < 4:
        return None
    low, middle, high = quantiles(means, n=4, method="inclusive")
    return low, middle, high
