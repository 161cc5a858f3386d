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

    @property
    def slots(self) -> int:
        """How many vectors of the parameters' size it keeps between steps."""
        return 2 if self._kind == "adam" else 1 if self._momentum else 0

    def step(self, parameters: Tensor, gradient: Tensor) -> None:
        """Update the parameters in place; the gradient is scratch space afterwards."""
        if self._first is None:
            self._first = torch.empty_like(gradient) if self.slots else gradient
            self._second = torch.empty_like(gradient) if self.slots > 1 else gradient
        assert self._second is not None
        self.step_with(parameters, gradient, self._first, self._second, self._count)
        self._count += 1

    def step_with(self, parameters: Tensor, gradient: Tensor, first: Tensor, second: Tensor, before: int) -> None:
        """As `step`, with the moments given, after so many steps; before the first step they may hold anything."""
        if self._weight_decay:
            gradient.add_(parameters, alpha=self._weight_decay)
        if self._kind == "adam":
            self._adam(parameters, gradient, first, second, before)
            return
        if self._momentum:
            # The first buffer is the gradient itself, as in torch: no dampening.
            gradient = first.mul_(self._momentum).add_(gradient) if before else first.copy_(gradient)
        parameters.add_(gradient, alpha=-self._lr)

    def _adam(
        self,
        parameters: Tensor,
        gradient: Tensor,
        first: Tensor,
        second: Tensor,
        before: int,
        beta1: float = 0.9,
        beta2: float = 0.999,
    ) -> None:
        if before == 0:
            first.zero_()
            second.zero_()
        count = before + 1
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = second.sqrt().div_((1 - beta2**count) ** 0.5).add_(1e-8)
        parameters.addcdiv_(first, denominator, value=-self._lr / (1 - beta1**count))
