"""A trial of the hooks of local training on a stack of clients, as an engine that trains many at once would use them.

Slow and plain: an MLP and a linear head with a leading axis, autograd, and clients that have equally long mini-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from farfield.federation.client import Batch, Client
from farfield.federation.local_training import Local
from farfield.federation.phase import is_local_training
from farfield.models import Model, ModelState


class StackedModel:
    """As many sets of parameters of one model as there are clients, with the model's own interface."""

    def __init__(self, model: Model, vectors: Sequence[Tensor]) -> None:
        self.spec, self.layout, stack = model.spec, model.layout, len(vectors)
        self.vector = torch.stack([*vectors])
        self.gradient = torch.zeros_like(self.vector)
        self._named = {
            name: self.vector[:, where].view(stack, *model.layout.shapes[name]).requires_grad_()
            for name, where in model.layout.slices.items()
        }
        weights = [name for name in self._named if name.endswith("weight")]
        self._hidden, last = weights[:-1], weights[-1]
        self.head = _StackedLinear(self._named[last], self._named.get(last.replace("weight", "bias")))
        self._body = [p for name, p in self._named.items() if not name.startswith("head.")]

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(2)
        for name in self._hidden:
            x = _linear(x, self._named[name], self._named[name.replace("weight", "bias")]).relu()
        return x

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def backward(self, loss: Tensor) -> None:
        assert loss.shape == self.vector.shape[:1], "one loss per client"
        grads = torch.autograd.grad(loss.sum(), list(self._named.values()))
        self._put(grads)

    def backward_from(self, inputs: Tensor, by_inputs: Tensor, by_final: Tensor) -> None:
        self._put([*torch.autograd.grad(inputs, self._body, by_inputs), by_final])

    def _put(self, grads: Sequence[Tensor]) -> None:
        self.gradient = torch.cat([grad.reshape(len(self.vector), -1) for grad in grads], dim=1)


class _StackedLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.last = SimpleNamespace(weight=weight, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        return _linear(x, self.last.weight, self.last.bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x @ weight.mT
    return product if bias is None else product + bias.unsqueeze(1)


def train_stack(
    method: Any, clients: Sequence[Client], model: Model, broadcast: ModelState, shared: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """The engine's loop for several clients at once: hooks of a client one by one, hooks of a step on the stack."""
    assert method.stackable
    assert is_local_training(method.train)
    prepared, starts = [], []
    for client in clients:
        model.load(broadcast)
        prepared.append(method.before_training(client, model, **shared))
        starts.append(model.vector.clone())
    stack = StackedModel(model, starts)
    common = {name: value.expand(len(clients), *value.shape) for name, value in shared.items()}
    own = {name: torch.stack([each[name] for each in prepared]) for name in prepared[0]}
    with torch.no_grad():
        local = Local(stack.vector, stack.vector.clone(), {**common, **own})
    optimizer = method.local_optimizer()
    for batches in zip(*(method.batches(client, model) for client in clients), strict=True):
        batch = Batch(torch.stack([b.x for b in batches]), torch.stack([b.y for b in batches]))
        loss = method.local_gradient(stack, batch, local)
        assert loss.shape == (len(clients),)
        with torch.no_grad():
            method.adjust(stack.gradient, local)
            optimizer.step(stack.vector, stack.gradient)
    replies = []
    for number, client in enumerate(clients):
        model.load(ModelState(stack.vector[number].detach(), broadcast.buffers))
        start = local.start[number]
        alone = Local(model.vector, start, {name: value[number] for name, value in local.shared.items()})
        replies.append({"update": model.vector - start, **method.after_training(client, model, alone)})
    return replies
