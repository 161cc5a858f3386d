"""Objectives of centralized domain generalization: IRM, Fishr and the weights of GroupDRO."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from farfield.math.head_gradients import residuals


def irm_penalty(logits: Tensor, targets: Tensor, halves: bool = False) -> Tensor:
    """IRMv1: the squared derivative, at w = 1, of the mean cross-entropy of w · logits (Arjovsky et al., 2019).

    `halves` multiplies the derivative on the even rows by the one on the odd rows instead: unbiased under
    mini-batches, and possibly negative (DomainBed, FedLOE's code). Logits and targets as in `linear_head_gradient`.
    """
    errors = residuals(logits, targets)
    scale_gradients = (errors * logits.reshape(errors.shape)).sum(dim=1)
    if not halves:
        return scale_gradients.mean().square()
    if scale_gradients.shape[0] < 2:
        raise ValueError("the two-halves IRM penalty needs at least two samples; use halves=False")
    return scale_gradients[0::2].mean() * scale_gradients[1::2].mean()


def fishr_penalty(variances: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """‖v_e − v̄‖² over the rows of an (environments, d) matrix of gradient variances (Rame et al., 2022).

    "mean" averages over the environments, as the papers write it; "sum" is FedILC's published code, E times as
    large for the same weight. A client needs only its own v_e and the mean v̄ for its part of the gradient: 2(v_e −
    v̄) times its own Jacobian is exact with v̄ held constant, since the deviations add up to zero.
    """
    total = (variances - variances.mean(dim=0)).square().sum()
    if reduction == "sum":
        return total
    if reduction == "mean":
        return total / variances.shape[0]
    raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")


def group_dro_weights(q: Tensor, losses: Tensor, eta: float) -> Tensor:
    """GroupDRO's next domain weights, proportional to q · exp(η · loss) and adding up to one (Sagawa et al., 2020).

    The objective is their inner product with the losses; no gradient flows through the weights. `q` starts as ones.
    """
    exponents = eta * losses.detach()
    # The largest exponent cancels in the normalisation; taking it out keeps exp from overflowing.
    raised = q.detach() * (exponents - exponents.max()).exp()
    return raised / raised.sum()
