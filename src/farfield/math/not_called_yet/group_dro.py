"""The weights of GroupDRO."""

from __future__ import annotations

from torch import Tensor


def group_dro_weights(q: Tensor, losses: Tensor, eta: float) -> Tensor:
    """GroupDRO's next domain weights, proportional to q · exp(η · loss) and adding up to one (Sagawa et al., 2020).

    The objective is their inner product with the losses; no gradient flows through the weights. `q` starts as ones.
    """
    exponents = eta * losses.detach()
    # The largest exponent cancels in the normalisation; taking it out keeps exp from overflowing.
    raised = q.detach() * (exponents - exponents.max()).exp()
    return raised / raised.sum()
