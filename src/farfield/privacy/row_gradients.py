"""The sum of the rows' gradients, each cut to a length: what record-level privacy is made of.

    total = clipped_sum(model, row_losses, batch, clip=1.0)      # Σ_i g_i · min(1, clip / ‖g_i‖), flat

Two ways, with the same result. In a model of linear layers the gradient of a row by a layer's weights is the outer
product of what goes into the layer and of the derivative by what comes out of it, so that its length and the clipped
sum need no gradient per row (Goodfellow 2015, Efficient Per-Example Gradient Computations; "ghost clipping"). Any other
model without BatchNorm takes one gradient per row with `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from farfield.federation.client import Batch
from farfield.models import Model

#: The loss of each row, given the model and a batch.
RowLosses = Callable[[Model, Batch], Tensor]
#: Gradients of single rows that are held at once, in numbers.
NUMBERS_AT_ONCE = 1 << 25
#: A row that is cut stays this much below the limit, so that rounding cannot lead over it.
MARGIN = 1e-6


def clipped_sum(model: Model, row_losses: RowLosses, batch: Batch, clip: float) -> Tensor:
    """Return the sum over rows of each row's gradient, cut to a length of at most `clip`.

    The gradient is flat, in the order of `model.vector`. A row whose gradient is not finite adds nothing, because no
    length bounds it.
    """
    if not len(batch.y):
        return torch.zeros_like(model.vector)
    if is_of_linear_layers(model):
        return _sum_of_linear_layers(model, row_losses, batch, clip)
    return _sum_row_by_row(model, row_losses, batch, clip)


def is_of_linear_layers(model: Model) -> bool:
    """Return whether all parameters belong to linear layers, which closed forms need."""
    inside = {id(p) for layer in model.modules() if isinstance(layer, nn.Linear) for p in layer.parameters()}
    return not model.layout.buffers and all(id(p) in inside for p in model.parameters())


def row_gradients(model: Model, row_losses: RowLosses, batch: Batch) -> Tensor:
    """Return one gradient per row, [row, parameter], by `torch.func`."""
    asked = _Asked(model, row_losses)
    parameters = {name: p.detach() for name, p in asked.named_parameters()}
    buffers = dict(asked.named_buffers())

    def loss_of_row(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        losses: Tensor = torch.func.functional_call(asked, (values, buffers), (x.unsqueeze(0), y.unsqueeze(0)))
        return losses.squeeze(0)

    by_row = torch.func.vmap(torch.func.grad(loss_of_row), in_dims=(None, 0, 0), randomness="different")
    found = by_row(parameters, batch.x, batch.y)
    return torch.cat([found[f"model.{name}"].flatten(1) for name in model.layout.slices], dim=1)


class _Asked(nn.Module):
    """The losses of rows as a module, so that `functional_call` can put other parameters into the model."""

    def __init__(self, model: Model, row_losses: RowLosses) -> None:
        super().__init__()
        self.model, self._row_losses = model, row_losses

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._row_losses(self.model, Batch(x, y))


def _sum_row_by_row(model: Model, row_losses: RowLosses, batch: Batch, clip: float) -> Tensor:
    total = torch.zeros_like(model.vector)
    at_once = max(1, NUMBERS_AT_ONCE // max(1, model.layout.parameters))
    for start in range(0, len(batch.y), at_once):
        part = Batch(batch.x[start : start + at_once], batch.y[start : start + at_once])
        gradients = row_gradients(model, row_losses, part)
        factors = _factors(gradients.double().square().sum(1), clip)
        total += (torch.where(factors.unsqueeze(1) > 0, gradients, 0.0) * factors.unsqueeze(1)).sum(0)
    return total


def _sum_of_linear_layers(model: Model, row_losses: RowLosses, batch: Batch, clip: float) -> Tensor:
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    into: dict[int, Tensor] = {}
    out: dict[int, Tensor] = {}

    def seen(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        into[id(layer)], out[id(layer)] = inputs[0].detach(), output

    hooks = [layer.register_forward_hook(seen) for layer in layers]
    try:
        losses = row_losses(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    # Rows do not mix, so the derivative of the sum by a row's outputs is that of the row's own loss.
    by_output = torch.autograd.grad(losses.sum(), [out[id(layer)] for layer in layers])
    squares = torch.zeros(len(batch.y), dtype=torch.float64, device=batch.y.device)
    for layer, delta in zip(layers, by_output, strict=True):
        inputs = into[id(layer)].double().square().sum(1) + (layer.bias is not None)
        squares += delta.double().square().sum(1) * inputs
    factors = _factors(squares, clip).unsqueeze(1)
    kept = factors > 0
    parts: dict[int, Tensor] = {}
    for layer, delta in zip(layers, by_output, strict=True):
        scaled = torch.where(kept, delta, 0.0) * factors
        parts[id(layer.weight)] = (scaled.T @ torch.where(kept, into[id(layer)], 0.0)).flatten()
        if layer.bias is not None:
            parts[id(layer.bias)] = scaled.sum(0)
    return torch.cat([parts[id(p)] for p in model.parameters()])


def _factors(squares: Tensor, clip: float) -> Tensor:
    """Return what each row's gradient is multiplied by, from the squares of their lengths.

    It is 0 for a row whose length is not finite, or is so large that rounding the factor could lead over the limit.
    """
    lengths, dtype = squares.sqrt(), torch.get_default_dtype()
    factors = torch.where(lengths > clip, clip * (1 - MARGIN) / lengths, torch.ones_like(lengths))
    return torch.where(torch.isfinite(lengths) & (factors >= torch.finfo(dtype).tiny), factors, 0.0).to(dtype)
