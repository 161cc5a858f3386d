"""The gradient over all training rows of each client in a stack, for methods that send one gradient per round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from farfield.federation.client import Batch, Client
from farfield.federation.phase import Named, Passes
from farfield.models import Stack, stacked_values

#: The mean loss of each client on its rows, given the models and the clients' class weights, if there are any.
Loss = Callable[[Stack, Batch, "Tensor | None"], Tensor]


def full_gradients(
    clients: Sequence[Client], model: Stack, read: Passes, weights: Sequence[Tensor | None], loss: Loss
) -> list[Named]:
    """Return each client's `gradient` and `loss`, counted as one local step."""
    gradient, totals = torch.zeros_like(model.vector), [0.0] * len(clients)
    stacked = stacked_values(weights)
    model.train()
    for where, batch in read():
        part, own = model.part(where), None if stacked is None else stacked[where]
        value = loss(part, batch, own) * (batch.y.shape[1] / clients[where.start].samples)
        part.backward(value)
        gradient[where] += part.gradient
        for number, share in enumerate(value.tolist(), where.start):
            totals[number] += share
    for client in clients:
        client.steps += 1
        client.examples += client.samples
    return [{"gradient": own, "loss": total} for own, total in zip(gradient, totals, strict=True)]
