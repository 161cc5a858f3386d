"""A client's rows at the final layer, the moments of their gradients, and the layers of the model, for FedILC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from farfield.federation.client import Client
from farfield.federation.client_state import ROUND_ONLY
from farfield.math import GradientMoments, residuals
from farfield.models import Model
from farfield.reproducibility.randomness import derive_seed, seed_layers

MOMENTS = f"{ROUND_ONLY}moments"


class FinalLayerRows(NamedTuple):
    """Some of the client's rows as the final layer sees them. Only `inside` has a graph."""

    inside: Tensor
    y: Tensor
    #: `inside` again, and the residuals that come of it, times the weight of the row's class, both float64.
    inputs: Tensor
    errors: Tensor
    logits: Tensor


def final_layer_rows(client: Client, model: Model, weights: Tensor | None) -> Iterator[FinalLayerRows]:
    """All rows, some at a time. What the model draws is the same in every phase of a round."""
    if model.spec.dropout or model.gaussian is not None:
        seed_layers(client.device, derive_seed(client.seed, client.round, client.name, "looks"))
    for x, y in client.sweep(client.training):
        inside = model.head.before_last(model.features(x))
        with torch.no_grad():
            logits = model.head.last(inside)
            errors = residuals(logits.double(), y)
            if weights is not None:
                errors = errors * weights.double()[y].unsqueeze(1)
            look = FinalLayerRows(inside, y, inside.detach().double(), errors, logits)
        yield look


@torch.no_grad()
def moments_of_rows(client: Client, model: Model, weights: Tensor | None) -> GradientMoments:
    """Mean and variance of the final layer's per-sample gradients."""
    moments = GradientMoments()
    for look in final_layer_rows(client, model, weights):
        moments.add(look.inputs, look.errors)
    return moments


def keep_moments(client: Client, moments: GradientMoments) -> None:
    """Keep the moments at the client between the two exchanges: the second would need another pass to have them."""
    parts = [*moments.mean, *moments.variance]
    client.state[MOMENTS] = torch.cat([part.reshape(-1) for part in parts])


def take_moments(client: Client, model: Model) -> GradientMoments | None:
    """The moments of the first exchange, which nobody needs after the second; None if they are not there."""
    together = client.state.pop(MOMENTS, None)
    if together is None:
        return None
    shape = model.head.last.weight.shape
    parts = torch.split(together, [shape.numel(), shape[0]] * 2)
    moments = GradientMoments()
    moments.rows = client.samples
    moments.mean = parts[0].view(shape), parts[1]
    moments.variance = parts[2].view(shape), parts[3]
    return moments


def flat(model: Model, weight: Tensor, bias: Tensor) -> Tensor:
    """The final layer's part of a vector, from what it is made of."""
    return torch.cat([weight.reshape(-1), bias]) if model.spec.head_bias else weight.reshape(-1)


def weight_and_bias(model: Model, final: Tensor) -> tuple[Tensor, Tensor]:
    """The final layer's part of a vector, apart; where there is no bias, zeros for it."""
    weight = model.head.last.weight
    bias = final[weight.numel() :] if model.spec.head_bias else final.new_zeros(len(weight))
    return final[: weight.numel()].view_as(weight), bias


def layers_of(model: Model) -> list[slice]:
    """Return the slice of the flat vector that holds each layer's weight and bias, in order."""
    spans: dict[str, slice] = {}
    for name, part in model.layout.slices.items():
        layer = name.rpartition(".")[0]
        spans[layer] = slice(spans[layer].start if layer in spans else part.start, part.stop)
    return list(spans.values())
