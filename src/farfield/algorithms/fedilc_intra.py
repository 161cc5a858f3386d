"""FedILC inside a client: the mean is taken over environments that each client holds, mini-batches or samples.

`fedilc-intra-geo` is Algorithm 2, `fedilc-intra-arith` its control with the arithmetic mean. Over clients both take the
arithmetic mean. See `fedilc` for the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from farfield.algorithms.fedilc import FedILCWithFishr, length_ratio
from farfield.algorithms.fedilc_final_layer import moments_of_rows
from farfield.algorithms.parameters import parameter
from farfield.algorithms.registry import register
from farfield.federation.client import Client
from farfield.math import GeometricAccumulator, GradientMoments
from farfield.models import Model, task_loss

#: Samples whose gradients are held at once when a client averages over samples.
SAMPLES_AT_ONCE = 64


class OfEnvironments(FedILCWithFishr):
    """Fishr, and a client's gradient that is a mean over environments inside the client."""

    def _environments(self, client: Client, model: Model) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients of the environments, some rows at a time, with the sum of their losses."""
        weights = self.class_weights(client, model)
        for x, y in client.batches(self.params.batch_size):
            loss = task_loss(model(x), y, class_weights=weights)
            model.backward(loss)
            yield self.settle(model, model.gradient.unsqueeze(0)), loss.detach()

    def _gradient_and_moments(self, client: Client, model: Model) -> tuple[dict[str, Any], GradientMoments]:
        steps, examples = client.steps, client.examples
        mean = self._mean(self._environments(client, model), model.vector)
        # The passes above are one gradient, however many batches it is made of.
        client.steps, client.examples = steps, examples
        mean["gradient"] = mean["gradient"].to(model.vector.dtype)
        return mean, moments_of_rows(client, model, self.class_weights(client, model))

    def _mean(self, environments: Iterator[tuple[Tensor, Tensor]], like: Tensor) -> dict[str, Any]:
        """The mean over environments, of gradients that are as long as `like`, and where it is."""
        total, loss, count = torch.zeros_like(like, dtype=torch.float64), 0.0, 0
        for rows, losses in environments:
            total += rows[0] if len(rows) == 1 else rows.sum(dim=0, dtype=torch.float64)
            loss += float(losses)
            count += len(rows)
        return {"gradient": total / count, "loss": loss / count}


@register
class IntraArith(OfEnvironments):
    """Fishr and the arithmetic mean over each client's mini-batches."""

    name: ClassVar[str] = "fedilc-intra-arith"

    class Params(FedILCWithFishr.Params):
        geometric: ClassVar[bool] = False

    def _gradient_and_moments(self, client: Client, model: Model) -> tuple[dict[str, Any], GradientMoments]:
        size = self.params.batch_size
        equal = size == 0 or size >= client.samples or client.samples % size == 0
        if equal and client.augment == "none":
            # Batches of one size: the mean of their gradients is the gradient of all rows, in large passes.
            return FedILCWithFishr._gradient_and_moments(self, client, model)
        return super()._gradient_and_moments(client, model)


@register
class IntraGeo(OfEnvironments):
    """Fishr and the geometric mean inside each client, over mini-batches or samples: Algorithm 2."""

    name: ClassVar[str] = "fedilc-intra-geo"

    class Params(FedILCWithFishr.Params):
        inner: Literal["batches", "samples"] = parameter(
            "batches", "environments inside a client: mini-batches (published code) or samples (paper)"
        )

    params: Params

    def _environments(self, client: Client, model: Model) -> Iterator[tuple[Tensor, Tensor]]:
        if self.params.inner == "batches":
            yield from super()._environments(client, model)
            return
        weights = self.class_weights(client, model)
        for x, y in client.sweep(client.training, SAMPLES_AT_ONCE):
            gradients = _per_sample_gradients(model, x, y)
            if weights is not None:
                gradients = gradients * weights[y].unsqueeze(1)
            rows = self.settle(model, gradients)
            with torch.no_grad():
                yield rows, task_loss(model(x), y, reduction="sum", class_weights=weights)

    def _mean(self, environments: Iterator[tuple[Tensor, Tensor]], like: Tensor) -> dict[str, Any]:
        accumulator = GeometricAccumulator(len(like), self.params.zeros, like.device)

        def counted() -> Iterator[tuple[Tensor, Tensor]]:
            for rows, losses in environments:
                accumulator.add(rows)
                yield rows, losses

        arithmetic = super()._mean(counted(), like)
        gradient = accumulator.result()
        ratio = length_ratio(gradient, arithmetic["gradient"])
        return {**arithmetic, "gradient": gradient, "geometric_to_arithmetic": ratio}


def _per_sample_gradients(model: Model, x: Tensor, y: Tensor) -> Tensor:
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits: Any = functional_call(model, {**parameters, **buffers}, (x.unsqueeze(0),))
        return task_loss(logits, y.unsqueeze(0))

    grads = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(parameters, x, y)
    return torch.cat([grads[name].reshape(len(y), -1) for name in parameters], dim=1)
