"""A client's rows at the final layer, the moments of their gradients, and the layers of the model, for FedILC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from farfield.federation.client import Client
from farfield.federation.client_state import ROUND_ONLY
from farfield.math import GradientMoments, residuals
from farfield.models import Model, Stack
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
        yield at_final_layer(model, x, y, weights)


def at_final_layer(model: Model | Stack, x: Tensor, y: Tensor, weights: Tensor | None) -> FinalLayerRows:
    """Rows of one client, or of each in a stack, as the final layer sees them."""
    inside = model.head.before_last(model.features(x))
    with torch.no_grad():
        logits = model.head.last(inside)
        errors = residuals(logits.double(), y)
        if weights is not None:
            errors = errors * of_rows(weights, y)
        return FinalLayerRows(inside, y, inside.detach().double(), errors, logits)


def of_rows(weights: Tensor, y: Tensor) -> Tensor:
    """The weight of each row's class, as a column in float64."""
    return weights.double().gather(-1, y).unsqueeze(-1)


@torch.no_grad()
def moments_of_rows(client: Client, model: Model, weights: Tensor | None) -> GradientMoments:
    """Mean and variance of the final layer's per-sample gradients."""
    moments = GradientMoments()
    for look in final_layer_rows(client, model, weights):
        moments.add(look.inputs, look.errors)
    return moments


def keep_moments(client: Client, moments: GradientMoments) -> None:
    """Keep the moments at the client between the two exchanges: the second would need another pass to have them."""
    client.state[MOMENTS] = _as_one(moments)


def keep_stacked_moments(clients: Sequence[Client], moments: GradientMoments) -> None:
    """As `keep_moments`, for a stack."""
    for client, own in zip(clients, _as_one(moments).unbind(), strict=True):
        client.state[MOMENTS] = own


def _as_one(moments: GradientMoments) -> Tensor:
    (mean, mean_bias), (variance, variance_bias) = moments.mean, moments.variance
    return torch.cat([mean.flatten(-2), mean_bias, variance.flatten(-2), variance_bias], dim=-1)


def take_moments(client: Client, model: Model) -> GradientMoments | None:
    """The moments of the first exchange, which nobody needs after the second; None if they are not there."""
    together = client.state.pop(MOMENTS, None)
    return None if together is None else _apart(together, model, client.samples)


def take_stacked_moments(clients: Sequence[Client], model: Stack) -> GradientMoments | None:
    """As `take_moments`, for a stack; None if a client lacks them."""
    if any(MOMENTS not in client.state for client in clients):
        return None
    return _apart(torch.stack([client.state.pop(MOMENTS) for client in clients]), model, clients[0].samples)


def _apart(together: Tensor, model: Model | Stack, rows: int) -> GradientMoments:
    outputs, inputs = model.head.last.weight.shape[-2:]
    mean, mean_bias, variance, variance_bias = torch.split(together, [outputs * inputs, outputs] * 2, dim=-1)
    moments = GradientMoments()
    moments.rows = rows
    moments.mean = mean.view(*mean.shape[:-1], outputs, inputs), mean_bias
    moments.variance = variance.view(*variance.shape[:-1], outputs, inputs), variance_bias
    return moments


def flat(model: Model | Stack, weight: Tensor, bias: Tensor) -> Tensor:
    """The final layer's part of a vector, from what it is made of."""
    return torch.cat([weight.flatten(-2), bias], dim=-1) if model.spec.head_bias else weight.flatten(-2)


def weight_and_bias(model: Model | Stack, final: Tensor) -> tuple[Tensor, Tensor]:
    """The final layer's part of a vector, apart; where there is no bias, zeros for it."""
    weight = model.head.last.weight
    outputs, inputs = weight.shape[-2:]
    bias = final[..., outputs * inputs :] if model.spec.head_bias else final.new_zeros(weight.shape[:-1])
    return final[..., : outputs * inputs].reshape(weight.shape), bias


def layers_of(model: Model) -> list[slice]:
    """Return the slice of the flat vector that holds each layer's weight and bias, in order."""
    spans: dict[str, slice] = {}
    for name, part in model.layout.slices.items():
        layer = name.rpartition(".")[0]
        spans[layer] = slice(spans[layer].start if layer in spans else part.start, part.stop)
    return list(spans.values())
