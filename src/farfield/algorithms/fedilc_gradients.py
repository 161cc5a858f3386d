"""FedILC's two gradients of some rows, of one client or of each in a stack: of the loss, and of the Fishr penalty.

Both have closed forms in the final layer, and autograd below it. The stacked forms of the phases are here as well: they
make the same calls for many clients at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from farfield.algorithms.fedilc_final_layer import (
    FinalLayerRows,
    at_final_layer,
    flat,
    keep_stacked_moments,
    of_rows,
    take_stacked_moments,
    weight_and_bias,
)
from farfield.federation.client import Client
from farfield.federation.phase import Named, Passes
from farfield.math import GradientMoments, through_softmax, variance_derivatives
from farfield.math.stacks import add_product, product
from farfield.models import Model, Stack, stacked_values, task_loss


def gradient_of_rows(model: Model | Stack, look: FinalLayerRows, moments: GradientMoments, samples: int) -> Tensor:
    """Return what these rows add to the gradient of the loss over so many samples, and add them to the moments."""
    share = look.y.shape[-1] / samples
    by_final = flat(model, *moments.add(look.inputs, look.errors)) * share
    weight = model.head.last.weight.detach().double()
    model.backward_from(look.inside, product(look.errors, weight) / samples, by_final)
    return model.gradient


def penalty_of_rows(
    model: Model | Stack,
    look: FinalLayerRows,
    moments: GradientMoments,
    factors: tuple[Tensor, Tensor],
    weights: Tensor | None,
) -> Tensor:
    """Return what these rows add to the gradient of factors · variance, with the mean gradient held constant."""
    by_inputs, by_errors = variance_derivatives(look.inputs, look.errors, moments.mean, factors)
    if weights is None:
        by_logits = through_softmax(by_errors, look.errors, look.y)
    else:
        own = of_rows(weights, look.y)
        by_logits = through_softmax(by_errors * own, look.errors / own, look.y)
    add_product(by_inputs, by_logits, model.head.last.weight.detach().double(), out=by_inputs)
    by_final = flat(model, product(by_logits.mT, look.inputs), by_logits.sum(dim=-2))
    model.backward_from(look.inside, by_inputs, by_final)
    return model.gradient


def gradients_and_variances(
    clients: Sequence[Client], model: Stack, read: Passes, weights: Sequence[Tensor | None]
) -> list[Named] | None:
    """Return the replies of `gradient_and_variance`; None if the models draw, which each client does by itself."""
    if model.spec.representation == "gaussian":
        return None
    gradient, totals = torch.zeros_like(model.vector), [0.0] * len(clients)
    stacked, found = stacked_values(weights), dict[int, tuple[slice, GradientMoments]]()
    model.train()
    for where, batch in read():
        part, own = model.part(where), None if stacked is None else stacked[where]
        _, moments = found.setdefault(where.start, (where, GradientMoments()))
        samples = clients[where.start].samples
        look = at_final_layer(part, batch.x, batch.y, own)
        gradient[where] += gradient_of_rows(part, look, moments, samples)
        share = batch.y.shape[1] / samples
        for number, loss in enumerate(task_loss(look.logits, look.y, class_weights=own).tolist(), where.start):
            totals[number] += share * loss
    variance = torch.cat([flat(model, *moments.variance) for _, moments in found.values()]).to(model.vector.dtype)
    for where, moments in found.values():
        keep_stacked_moments(clients[where], moments)
    for client in clients:
        client.steps += 1
        client.examples += client.samples
    replies = zip(gradient, totals, variance, strict=True)
    return [{"gradient": own, "loss": loss, "variance": spread} for own, loss, spread in replies]


def penalty_gradients(
    clients: Sequence[Client], model: Stack, read: Passes, weights: Sequence[Tensor | None], mean_variance: Tensor
) -> list[Named] | None:
    """Return the replies of `variance_gradient`; None if the models draw, or if a client has kept no moments."""
    if model.spec.representation == "gaussian":
        return None
    total, deviations = torch.zeros_like(model.vector), [0.0] * len(clients)
    stacked = stacked_values(weights)
    known: dict[int, tuple[GradientMoments, tuple[Tensor, Tensor]]] = {}
    model.train()
    for where, batch in read():
        part, own = model.part(where), None if stacked is None else stacked[where]
        if where.start not in known:
            moments = take_stacked_moments(clients[where], part)
            if moments is None:
                return None
            gap = flat(part, *moments.variance) - mean_variance[where].double()
            known[where.start] = moments, weight_and_bias(part, gap * (2.0 / clients[where.start].samples))
            deviations[where] = gap.square().sum(-1).tolist()
        look = at_final_layer(part, batch.x, batch.y, own)
        total[where] += penalty_of_rows(part, look, *known[where.start], own)
    return [{"penalty_gradient": own, "deviation": gap} for own, gap in zip(total, deviations, strict=True)]
