"""FedProx: the pull of a client's parameters towards the ones it was sent."""

from __future__ import annotations

from torch import Tensor


def proximal_penalty(vector: Tensor, anchor: Tensor, mu: float) -> Tensor:
    """μ/2 · ‖vector − anchor‖², a value to add to a client's loss; one value per row of a stack."""
    return 0.5 * mu * (vector - anchor).square().sum(-1)
