"""Minimising a smooth function of a few variables properly: Newton's method with exact second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_STOP = 1e-12
_ACCEPT = 1e-8


@dataclass(frozen=True)
class Minimum:
    """The lowest point found. `converged` says that the gradient vanishes there and no direction curves down."""

    x: Tensor
    value: float
    gradient_norm: float
    converged: bool


def newton_minimum(objective: Callable[[Tensor], Tensor], start: Tensor, max_steps: int = 200) -> Minimum:
    """A local minimum of a twice differentiable function, downhill from `start`, in float64.

    Steps divide by the absolute curvature, so that they lead away from saddle points, and are halved until the value
    falls: the value never rises and the result depends on the start alone. Gradients count as zero relative to the
    largest curvature.
    """
    x = start.detach().to(torch.float64)
    value, gradient, hessian = _second_order(objective, x)
    for _ in range(max_steps):
        if not _all_finite(value, gradient, hessian):
            return Minimum(x, float(value), float("nan"), converged=False)
        curvatures, axes = torch.linalg.eigh(hessian)
        steepest = float(curvatures.abs().max())
        if float(gradient.norm()) <= _STOP * (1.0 + steepest):
            break
        along = axes.T @ gradient
        step = -axes @ (along / curvatures.abs().clamp_min(1e-10 * steepest + 1e-300))
        shorter = _downhill(objective, x, float(value), step, float(gradient @ step))
        if shorter is None:
            break
        x = x + shorter * step
        value, gradient, hessian = _second_order(objective, x)
    curvatures = torch.linalg.eigvalsh(hessian)
    scale = 1.0 + float(curvatures.abs().max())
    norm = float(gradient.norm())
    settled = norm <= _ACCEPT * scale and float(curvatures.min()) >= -_ACCEPT * scale
    return Minimum(x, float(value), norm, converged=settled)


def _downhill(
    objective: Callable[[Tensor], Tensor], x: Tensor, value: float, step: Tensor, slope: float
) -> float | None:
    """How much of the step lowers the value enough; None if no part of it does."""
    length = 1.0
    rounding = 1e-15 * (1.0 + abs(value))
    for _ in range(60):
        if float(objective(x + length * step).detach()) <= value + 1e-4 * length * slope + rounding:
            return length
        length /= 2
    return None


def _second_order(objective: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    at = x.clone().requires_grad_()
    value = objective(at)
    (gradient,) = torch.autograd.grad(value, at, create_graph=True)
    rows = [torch.autograd.grad(g, at, retain_graph=True, materialize_grads=True)[0] for g in gradient]
    hessian = torch.stack(rows)
    return value.detach(), gradient.detach(), (hessian + hessian.T) / 2


def _all_finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)
