"""The optimizer of local training for neighbours in a stack, whose moments are slices of those of the whole stack."""

from __future__ import annotations

from torch import Tensor

from farfield.federation.local_optimizer import LocalOptimizer


class StackedOptimizer:
    """Steps of several clients at once. All have made as many steps before."""

    def __init__(self, optimizer: LocalOptimizer, first: Tensor, second: Tensor) -> None:
        self._optimizer, self._first, self._second = optimizer, first, second

    def step(self, parameters: Tensor, gradient: Tensor, before: int) -> None:
        """Update the parameters in place, after so many steps; the gradient is scratch space afterwards."""
        self._optimizer.step_with(parameters, gradient, self._first, self._second, before)
