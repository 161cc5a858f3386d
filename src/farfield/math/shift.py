"""Numbers that describe the shift between domains, and the agreement between clients."""

from __future__ import annotations

import torch
from torch import Tensor


def proxy_a_distance(error: float) -> float:
    """2(1 − 2ε) for the error ε of a classifier that tells two data sets apart.

    0 where it does no better than chance, 2 where the sets separate; negative if it does worse than chance.
    """
    if not 0.0 <= error <= 1.0:
        raise ValueError(f"error must be a rate in [0, 1], got {error}")
    return 2.0 * (1.0 - 2.0 * error)


def prediction_disagreement(labels_a: Tensor, labels_b: Tensor) -> float:
    """Share of samples to which two models give different labels."""
    if labels_a.shape != labels_b.shape or labels_a.numel() == 0:
        raise ValueError(
            f"expected two equally long, non-empty label vectors, "
            f"got shapes {tuple(labels_a.shape)} and {tuple(labels_b.shape)}"
        )
    return float((labels_a != labels_b).to(torch.float64).mean())


@torch.no_grad()
def gradient_cosines(updates: Tensor, direction: Tensor) -> Tensor:
    """Cosine between each row of `updates` and `direction`, as a float64 vector; 0 where either has no length."""
    unit = _unit(direction)
    return torch.stack([_unit(row) @ unit for row in updates]).clamp(-1.0, 1.0)


def _unit(vector: Tensor) -> Tensor:
    values = vector.to(torch.float64)
    largest = values.abs().max()
    if float(largest) == 0.0:
        return values
    # Dividing by the largest entry first keeps the squares of tiny and of huge entries representable.
    values = values / largest
    unit: Tensor = values / torch.linalg.vector_norm(values)
    return unit
