"""FedILC: a geometric mean of gradients, and gradients whose variance agrees between clients.

Where clients' gradients differ in size or sign, their geometric mean is small: a direction counts only as far as all
agree on it. Besides, the Fishr penalty asks that the variance of the final layer's per-sample gradients be the same at
every client.

    Zhu, Ezzine, Liu, Bengio. FedILC: Weighted Geometric Mean and Invariant Gradient Covariance for Federated Learning
    on Non-IID Data. 2022. Algorithms 1 and 2.

| name | client's gradient | over clients | Fishr |
|---|---|---|---|
| `fedilc-geometric` | of all rows | geometric | – |
| `fedilc-fishr` (the paper's row "FedCurv") | of all rows | arithmetic | + |
| `fedilc-inter-geo` (Algorithm 1) | of all rows | geometric | + |
| `fedilc-intra-arith` | mean over mini-batches | arithmetic | + |
| `fedilc-intra-geo` (Algorithm 2) | geometric over mini-batches or samples | arithmetic | + |

The step is w ← w − η (∇F + λ ∇L), L = (1/E) Σ_e ‖v_e − v̄‖². Two exchanges: clients send ∇F_e and v_e; the server
returns v̄; clients send ∇‖v_e − v̄‖² with v̄ held constant, which is exact because the deviations add up to zero. No
client's graph leaves it, as it would have to in the published code.

Differs from the paper in: see `differences`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, grad, vmap

from farfield.algorithms.fedavg import FedAvg, Ruled
from farfield.algorithms.registry import AlgorithmError, register
from farfield.algorithms.state import State
from farfield.federation.client import Client
from farfield.federation.federation import Federation, Replies
from farfield.federation.phase import SCALAR, Named, Sends, phase
from farfield.math import (
    GeometricAccumulator,
    fishr_penalty,
    gradient_variance,
    head_gradient_variance,
    residuals,
    through_softmax,
    variance_derivatives,
    weighted_geometric_mean,
)
from farfield.models import Model, ModelSpec, task_loss

PAPER = "Zhu et al., FedILC: Weighted Geometric Mean and Invariant Gradient Covariance, 2022"
#: Samples whose gradients are held at once when a client averages over samples.
SAMPLES_AT_ONCE = 64
#: Rows that pass through the model at once.
ROWS_AT_ONCE = 1024
#: What goes into the final layer, what comes out of it, and the labels, of all rows.
_Seen = tuple[Tensor, Tensor, Tensor]


class FedILC(FedAvg):
    """One gradient a client and round; what differs between the variants is which mean is taken where."""

    family: ClassVar[str] = "invariance"
    paper: ClassVar[str] = PAPER
    differences: ClassVar[tuple[str, ...]] = (
        "a real federated protocol with a second exchange; one upload cannot give the gradient of the Fishr term",
        "an exact zero is in neither sign's set; the paper's definition (one zero makes the mean zero, so a silent "
        "ReLU freezes its weights) is zeros=paper",
        "Fishr is the mean over clients as the paper writes it; the published code's sum is fishr_reduction=sum",
        "server Adam as in the published code; the paper's plain step is server_optimizer=sgd",
        "no agreement mask: with the published threshold 0 it is all ones",
    )
    phases: ClassVar[tuple[str, ...]] = ("gradient",)
    single_step: ClassVar[bool] = True
    #: Which mean is taken: over clients, and inside a client.
    over_clients: ClassVar[Literal["arithmetic", "geometric"]] = "arithmetic"
    in_client: ClassVar[Literal["rows", "arithmetic", "geometric"]] = "rows"

    class Params(FedAvg.Params):
        lr: float = Field(1.0, gt=0, description="factor on the gradient before the server optimizer")
        server_optimizer: Literal["sgd", "adam", "yogi"] = Field("adam", description="what applies the direction")
        server_lr: float = Field(3e-3, gt=0, description="η, global step size")
        server_momentum: float = Field(0.9, ge=0, lt=1, description="β₁ of server adam")
        server_beta2: float = Field(0.999, ge=0, lt=1, description="β₂ of server adam")
        server_epsilon: float = Field(1e-8, gt=0, description="ε of server adam")
        server_bias_correction: bool = Field(True, description="server adam as in torch.optim.Adam")
        weighting: Literal["samples", "uniform"] = Field("uniform", description="weight of a client in the mean")
        zeros: Literal["neither", "paper"] = Field("neither", description="exact zeros: in neither sign's set, or both")

    def round(self, fed: Federation, state: State) -> State:
        gradients = fed.map(self.gradient, state.model)
        return state.step(self.aggregate(gradients))

    @phase(
        gradient=Sends("parameters", "the client's gradient"),
        loss=Sends(SCALAR, "mean training loss"),
    )
    def gradient(self, client: Client, model: Model) -> Named:
        gradient, loss, _ = self._own_gradient(client, model)
        return {"gradient": gradient, "loss": loss}

    def _own_gradient(self, client: Client, model: Model) -> tuple[Tensor, float, _Seen | None]:
        """The client's gradient and loss, and what its final layer saw, where that came with it."""
        client.steps += 1
        client.examples += client.samples
        model.train()
        if self.in_client == "rows":
            return _gradient_of_all_rows(client, model)
        total = 0.0
        steps, examples = client.steps, client.examples
        accumulator = GeometricAccumulator(len(model.vector), self.params.zeros)
        mean = torch.zeros_like(model.vector, dtype=torch.float64)
        for rows, loss in self._environments(client, model):
            accumulator.add(rows)
            mean += rows.sum(dim=0, dtype=torch.float64)
            total += float(loss)
        # The passes above are one gradient, however many batches it is made of.
        client.steps, client.examples = steps, examples
        chosen = accumulator.result() if self.in_client == "geometric" else mean / accumulator.rows
        return chosen.to(model.vector.dtype), total / accumulator.rows, None

    def _environments(self, client: Client, model: Model) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients of the environments inside a client, some rows at a time, with the sum of their losses."""
        if getattr(self.params, "inner", "batches") == "samples":
            for x, y in client.sweep(client.training, SAMPLES_AT_ONCE):
                rows = _per_sample_gradients(model, x, y)
                with torch.no_grad():
                    yield rows, task_loss(model(x), y, reduction="sum")
            return
        for x, y in client.batches(self.params.batch_size):
            loss = task_loss(model(x), y)
            model.backward(loss)
            yield model.gradient.unsqueeze(0), loss.detach()

    def updates(self, replies: Replies) -> Tensor:
        return replies.stack("gradient").mul_(-self.params.lr)

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        if self.over_clients == "geometric":
            return weighted_geometric_mean(updates, self.params.zeros)
        return super().combine(updates, weights)

    def check(self, spec: ModelSpec, kind: str, clients: int) -> None:
        if spec.norm in ("average", "local"):
            raise AlgorithmError(
                f"{self.name} takes one gradient a round and keeps no running statistics; "
                "use model.norm=group, freeze or none"
            )


class FedILCWithFishr(FedILC):
    """FedILC with the Fishr penalty on the final layer's gradient variance."""

    phases: ClassVar[tuple[str, ...]] = ("gradient_and_variance", "variance_gradient")
    penalty_weight: ClassVar[str | None] = "fishr"

    class Params(FedILC.Params):
        fishr: float = Field(1.0, ge=0, description="λ, weight of the Fishr penalty")
        fishr_reduction: Literal["mean", "sum"] = Field("mean", description="over clients: the paper's, or the code's")

    def round(self, fed: Federation, state: State) -> State:
        first = fed.map(self.gradient_and_variance, state.model)
        aggregate = self.aggregate(first)
        variances = first.stack("variance")
        second = fed.map(self.variance_gradient, state.model, mean_variance=variances.mean(dim=0))
        # Only together are the parts the exact gradient: the deviations of those who answered twice must add up.
        notes = [] if len(second) == len(first) else ["a client answered once only; the Fishr gradient lacks its part"]
        parts = second.stack("penalty_gradient").double()
        penalty = (parts.sum(dim=0) / (len(first) if self.params.fishr_reduction == "mean" else 1)).to(variances.dtype)
        direction = aggregate.direction - self.params.lr * self.params.fishr * penalty
        diagnostics = {"fishr_penalty": float(fishr_penalty(variances.double(), self.params.fishr_reduction))}
        if self.over_clients == "geometric":
            diagnostics["geometric_to_arithmetic"] = _ratio(aggregate.direction, self.updates(first))
        return state.step(replace(aggregate, direction=direction), diagnostics, notes)

    @phase(
        gradient=Sends("parameters", "the client's gradient"),
        variance=Sends("final layer", "variance over samples of the final layer's gradients", server_sees="sum"),
        loss=Sends(SCALAR, "mean training loss"),
    )
    def gradient_and_variance(self, client: Client, model: Model) -> Named:
        gradient, loss, seen = self._own_gradient(client, model)
        variance = head_gradient_variance(*(seen or _seen(model, _passes(client, model))))
        return {"gradient": gradient, "variance": _flat(model, *variance), "loss": loss}

    @phase(penalty_gradient=Sends("parameters", "gradient of ‖v_e − v̄‖² with v̄ held constant", server_sees="sum"))
    def variance_gradient(self, client: Client, model: Model, mean_variance: Tensor) -> Named:
        """With c = 2 (v_e − v̄), the gradient of c·v_e: closed forms in the final layer, autograd below it.

        Where the rows pass through the model in parts, they do so twice, so that no graph of all of them is held.
        """
        model.train()
        n, last = client.samples, model.head.last
        once = list(_passes(client, model)) if n <= ROWS_AT_ONCE else None
        inputs, logits, labels = (
            t.double() if t.is_floating_point() else t for t in _seen(model, once or _passes(client, model))
        )
        errors = residuals(logits, labels)
        mean = (errors.T @ inputs / n, errors.mean(dim=0))
        own = _flat(model, *gradient_variance(inputs, errors))
        factors = _weight_and_bias(model, (own - mean_variance.double()) * (2.0 / n))
        total = torch.zeros_like(model.vector)
        start = 0
        for inside, y in once or _passes(client, model):
            rows = slice(start, start := start + len(y))
            by_inputs, by_errors = variance_derivatives(inputs[rows], errors[rows], mean, factors)
            by_logits = through_softmax(by_errors, errors[rows], y)
            by_inputs += by_logits @ last.weight.detach().double()
            by_final = _flat(model, by_logits.T @ inputs[rows], by_logits.sum(dim=0))
            model.backward_from(inside, by_inputs.to(inside.dtype), by_final.to(inside.dtype))
            total += model.gradient
        return {"penalty_gradient": total}

    def check(self, spec: ModelSpec, kind: str, clients: int) -> None:
        super().check(spec, kind, clients)
        if kind != "classification":
            raise AlgorithmError(f"{self.name} needs class labels: its penalty is on cross-entropy gradients")
        if clients < 2:
            raise AlgorithmError(f"{self.name} compares clients with each other and needs at least 2 in a cohort")


@register
class Geometric(FedILC):
    """The geometric mean of the clients' gradients. As a server half, of any client method's updates."""

    name: ClassVar[str] = "fedilc-geometric"
    server_half: ClassVar[frozenset[str]] = frozenset({"rule"})

    def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> Tensor | Ruled:
        direction = weighted_geometric_mean(updates, self.params.zeros)
        return Ruled(direction, {"geometric_to_arithmetic": _ratio(direction, updates)})

    def check(self, spec: ModelSpec, kind: str, clients: int) -> None:
        if clients < 2:
            raise AlgorithmError(f"{self.name} takes a mean over clients and needs at least 2 in a cohort")


@register
class Fishr(FedILCWithFishr):
    """Fishr with the arithmetic mean: the row that the paper calls FedCurv."""

    name: ClassVar[str] = "fedilc-fishr"


@register
class InterGeo(FedILCWithFishr):
    """Fishr and the geometric mean over clients: Algorithm 1."""

    name: ClassVar[str] = "fedilc-inter-geo"
    over_clients: ClassVar[Literal["arithmetic", "geometric"]] = "geometric"


@register
class IntraArith(FedILCWithFishr):
    """Fishr and the arithmetic mean over each client's mini-batches."""

    name: ClassVar[str] = "fedilc-intra-arith"
    in_client: ClassVar[Literal["rows", "arithmetic", "geometric"]] = "arithmetic"


@register
class IntraGeo(FedILCWithFishr):
    """Fishr and the geometric mean inside each client, over mini-batches or samples: Algorithm 2."""

    name: ClassVar[str] = "fedilc-intra-geo"
    in_client: ClassVar[Literal["rows", "arithmetic", "geometric"]] = "geometric"

    class Params(FedILCWithFishr.Params):
        inner: Literal["batches", "samples"] = Field(
            "batches", description="environments inside a client: mini-batches (published code) or samples (paper)"
        )


def _passes(client: Client, model: Model) -> Iterator[tuple[Tensor, Tensor]]:
    """What the final layer sees of the client's rows, with the graph below it, and their labels; some at a time."""
    for x, y in client.sweep(client.training, ROWS_AT_ONCE):
        yield model.head.before_last(model.features(x)), y


@torch.no_grad()
def _seen(model: Model, passes: Iterable[tuple[Tensor, Tensor]]) -> _Seen:
    inputs, labels = zip(*((inside.detach(), y) for inside, y in passes), strict=True)
    together = torch.cat(inputs)
    return together, model.head.last(together), torch.cat(labels)


def _gradient_of_all_rows(client: Client, model: Model) -> tuple[Tensor, float, _Seen]:
    gradient, total = torch.zeros_like(model.vector), 0.0
    inputs, logits, labels = [], [], []
    for inside, y in _passes(client, model):
        out = model.head.last(inside)
        loss = task_loss(out, y) * (len(y) / client.samples)
        model.backward(loss)
        gradient += model.gradient
        total += float(loss.detach())
        inputs.append(inside.detach())
        logits.append(out.detach())
        labels.append(y)
    return gradient, total, (torch.cat(inputs), torch.cat(logits), torch.cat(labels))


def _ratio(direction: Tensor, updates: Tensor) -> float:
    """Length of the geometric mean against the arithmetic one's: 1 where all agree, near 0 where nobody does."""
    mean = updates.mean(dim=0).norm()
    return float(direction.norm() / mean) if mean > 0 else 0.0


def _flat(model: Model, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight.reshape(-1), bias]) if model.spec.head_bias else weight.reshape(-1)


def _weight_and_bias(model: Model, final: Tensor) -> tuple[Tensor, Tensor]:
    """The final layer's part of a vector, apart; where there is no bias, zeros for it."""
    weight = model.head.last.weight
    bias = final[weight.numel() :] if model.spec.head_bias else final.new_zeros(len(weight))
    return final[: weight.numel()].view_as(weight), bias


def _per_sample_gradients(model: Model, x: Tensor, y: Tensor) -> Tensor:
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits: Any = functional_call(model, {**parameters, **buffers}, (x.unsqueeze(0),))
        return task_loss(logits, y.unsqueeze(0))

    grads = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(parameters, x, y)
    return torch.cat([grads[name].reshape(len(y), -1) for name in parameters], dim=1)
