"""The optimizer of local training, on flat vectors of one client or of a stack: one kernel per step."""

from __future__ import annotations

import torch
from torch import Tensor


class LocalOptimizer:
    """SGD with momentum, or Adam, as in `torch.optim` (coupled weight decay). A new one is made every round."""

    def __init__(self, kind: str, lr: float, momentum: float, weight_decay: float) -> None:
        self._kind, self._lr, self._momentum, self._weight_decay = kind, lr, momentum, weight_decay
        self._first: Tensor | None = None
        self._second: Tensor | None = None
        self._count = 0

    def step(self, parameters: Tensor, gradient: Tensor) -> None:
        """Update the parameters in place; the gradient is scratch space afterwards."""
        if self._weight_decay:
            gradient.add_(parameters, alpha=self._weight_decay)
        if self._kind == "adam":
            self._adam(parameters, gradient)
            return
        if self._momentum:
            # The first buffer is the gradient itself, as in torch: no dampening.
            self._first = gradient.clone() if self._first is None else self._first.mul_(self._momentum).add_(gradient)
            gradient = self._first
        parameters.add_(gradient, alpha=-self._lr)

    def _adam(self, parameters: Tensor, gradient: Tensor, beta1: float = 0.9, beta2: float = 0.999) -> None:
        if self._first is None or self._second is None:
            self._first, self._second = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self._count += 1
        self._first.lerp_(gradient, 1 - beta1)
        self._second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (1 - beta2**self._count) ** 0.5
        denominator = self._second.sqrt().div_(scale).add_(1e-8)
        parameters.addcdiv_(self._first, denominator, value=-self._lr / (1 - beta1**self._count))
