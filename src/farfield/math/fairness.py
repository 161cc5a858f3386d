"""How evenly accuracy is spread over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fairness:
    """How evenly accuracy is spread over clients (FedILC, table 3).

    `variance` is the population variance of the accuracies, `entropy` the Shannon entropy in nats of the accuracies
    divided by their sum, at most ln n. The paper prints them times 1000 and times 10.
    """

    variance: float
    entropy: float


def fairness(accuracies: Sequence[float] | Tensor) -> Fairness:
    """Variance and entropy of the clients' accuracies. Accuracies that are all zero are perfectly even."""
    values = torch.as_tensor(accuracies, dtype=torch.float64)
    if values.ndim != 1 or values.numel() == 0 or not bool((values >= 0).all()):
        raise ValueError(f"expected a non-empty list of accuracies that are not negative, got {values.tolist()}")
    variance = float((values - values.mean()).square().mean())
    total = values.sum()
    if float(total) == 0.0:
        return Fairness(variance, log(values.numel()))
    shares = values / total
    return Fairness(variance, float(-torch.special.xlogy(shares, shares).sum()))
