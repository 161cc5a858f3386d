"""Server optimizers as pure functions on flat vectors.

Each takes a *direction*: a descent step, which is added to the parameters. FedAvg's mean update is one; a gradient
becomes one by changing its sign. Slots carry the optimizer's state from one round to the next as named tensors; an
empty dict is the first step. Nothing is changed in place. Weight decay is coupled (an L2 term in the gradient), as
in `torch.optim.SGD` and `torch.optim.Adam`.

`adam_step` without bias correction and `yogi_step` are FedAdam and FedYogi of Reddi et al., *Adaptive Federated
Optimization*, ICLR 2021, Algorithm 2: m ← β₁m + (1 − β₁)Δ, x ← x + η·m/(√v + τ). The paper asks for v₋₁ ≥ τ², and v
starts at exactly τ² (`epsilon` squared) here.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

Slots = dict[str, Tensor]


def sgd_step(
    parameters: Tensor,
    direction: Tensor,
    slots: Slots,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> tuple[Tensor, Slots]:
    """parameters + lr·m with m ← momentum·m + direction (the first m is the direction itself).

    With `lr=1` and no momentum or decay this is FedAvg, to the bit. Slots: 'm' if there is momentum.
    """
    step = _decayed(parameters, direction, weight_decay)
    if momentum == 0.0:
        return parameters + lr * step, {}
    if slots:
        step = momentum * _slot(slots, "m") + step
    return parameters + lr * step, {"m": step.clone()}


def adam_step(
    parameters: Tensor,
    direction: Tensor,
    slots: Slots,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    epsilon: float = 1e-3,
    bias_correction: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Tensor, Slots]:
    """One Adam step along `direction`. Slots: 'm', 'v' and 'count'.

    `bias_correction=False` is FedAdam with its paper's defaults, v starting at epsilon². `bias_correction=True` is
    `torch.optim.Adam(lr, (beta1, beta2), eps=epsilon, weight_decay=...)` on the gradient −direction, v starting at 0.
    """
    step = _decayed(parameters, direction, weight_decay)
    m, v, count = _moments(step, slots, 0.0 if bias_correction else epsilon**2)
    m = m.lerp(step, 1.0 - beta1)
    v = (beta2 * v).addcmul(step, step, value=1.0 - beta2)
    count = count + 1
    if bias_correction:
        rounds = int(count)
        scale = lr / (1.0 - beta1**rounds)
        denominator = v.sqrt() / sqrt(1.0 - beta2**rounds) + epsilon
    else:
        scale = lr
        denominator = v.sqrt() + epsilon
    return parameters.addcdiv(m, denominator, value=scale), {"m": m, "v": v, "count": count}


def yogi_step(
    parameters: Tensor,
    direction: Tensor,
    slots: Slots,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    epsilon: float = 1e-3,
    weight_decay: float = 0.0,
) -> tuple[Tensor, Slots]:
    """FedYogi: as FedAdam, with v ← v − (1 − β₂)·Δ²·sign(v − Δ²), so that v moves by a bounded amount either way.

    Slots: 'm', 'v' (which starts at epsilon²) and 'count'.
    """
    step = _decayed(parameters, direction, weight_decay)
    m, v, count = _moments(step, slots, epsilon**2)
    m = m.lerp(step, 1.0 - beta1)
    square = step.square()
    v = v - (1.0 - beta2) * square * torch.sign(v - square)
    return parameters.addcdiv(m, v.sqrt() + epsilon, value=lr), {"m": m, "v": v, "count": count + 1}


def _decayed(parameters: Tensor, direction: Tensor, weight_decay: float) -> Tensor:
    return direction if weight_decay == 0.0 else direction - weight_decay * parameters


def _moments(step: Tensor, slots: Slots, initial_v: float) -> tuple[Tensor, Tensor, Tensor]:
    if not slots:
        return torch.zeros_like(step), torch.full_like(step, initial_v), torch.zeros((), dtype=torch.int64)
    return _slot(slots, "m"), _slot(slots, "v"), _slot(slots, "count")


def _slot(slots: Slots, name: str) -> Tensor:
    if name not in slots:
        raise ValueError(
            f"slot {name!r} is missing from {sorted(slots)}: these slots belong to another server optimizer"
        )
    return slots[name]
