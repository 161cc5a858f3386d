"""FedIIR: clients agree on the gradient of the classifier, and with it on an implicit invariant relationship.

If the classifier's gradient is the same at every client, the classifier is optimal for all of them at once. FedIIR adds
to each local objective the squared distance between the client's classifier gradient and the federation's.

    Guo, Guo, Guo, Yang, Yu. Out-of-Distribution Generalization of Federated Learning via Implicit Invariant
    Relationships. ICML 2023. Algorithm 1; the moving average of the gradient is in appendix C.

A round has two exchanges: the cohort's classifier gradients g_ω, averaged into the target g̃ ← υ g̃ + (1 − υ) g_ω; then
local training on R_c(θ) + γ/2 ‖∇_ω R_c(θ) − g̃‖², whose gradient flows into featurizer and classifier alike. For a
linear head ∇_ω R_c is a closed form and the step is one ordinary backward; for an MLP head it is a second backward
through the head's part of the graph.

Differs from the paper in: nothing in the formulas. The published code weighs the penalty by γ instead of γ/2
(`half=false`) and averages the gradient over all mini-batches of the cohort instead of over clients
(`gradient_average=batches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from farfield.algorithms.fedavg import COUNT, FedAvg
from farfield.algorithms.parameters import choices, log_range, parameter
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.algorithms.supports import No, Supports
from farfield.federation.client import Batch, Client
from farfield.federation.federation import Federation, Replies
from farfield.federation.local_training import Local
from farfield.federation.phase import SCALAR, Named, Passes, Sends, phase, stacked_form
from farfield.federation.reply_checks import LARGEST
from farfield.math import AlignedHead, aligned_cross_entropy, ema, linear_head_gradient
from farfield.models import Model, ModelSpec, ModelState, Stack, task_loss


@register
class FedIIR(FedAvg):
    """Penalise the distance of each client's classifier gradient to the federation's."""

    name: ClassVar[str] = "fediir"
    family: ClassVar[str] = "invariance"
    paper: ClassVar[str] = "Guo et al., OOD Generalization of FL via Implicit Invariant Relationships, ICML 2023"
    differences: ClassVar[tuple[str, ...]] = (
        "the published code weighs the penalty by γ instead of γ/2: half=false",
        "the published code averages the gradient over mini-batches instead of clients: gradient_average=batches",
        "the published code trains with momentum 0.9, of which the paper says nothing: momentum=0.9",
    )
    phases: ClassVar[tuple[str, ...]] = ("head_gradient", "train")
    receives: ClassVar[Mapping[str, Mapping[str, Sends]]] = {
        "train": {"target": Sends("head", "moving average of the clients' head gradients", is_update=True)}
    }
    penalty_weight: ClassVar[str | None] = "gamma"
    supports: ClassVar[Supports] = Supports(
        record_privacy=No("penalises a product of the gradients of many rows, in which one row has no bounded part"),
        client_privacy=True,
    )
    stackable: ClassVar[bool] = True  # with a linear head
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"gamma": 0.0}

    class Params(FedAvg.Params):
        gamma: float = parameter(
            1e-2, "γ, weight of the gradient alignment; 0 gives FedAvg", log_range(1e-4, 10.0), ge=0
        )
        upsilon: float = parameter(
            0.95, "υ, memory of the gradient's moving average", choices(0.0, 0.5, 0.9, 0.95), ge=0, lt=1
        )
        half: bool = parameter(True, "the paper's γ/2; false for the published code's γ")
        gradient_average: Literal["clients", "batches"] = parameter(
            "clients", "mean of full-batch gradients over clients, or over all mini-batches"
        )
        weighting: Literal["samples", "uniform"] = parameter("uniform", "weight of a client in the mean")

        @model_validator(mode="after")
        def _batches_are_not_private(self) -> FedIIR.Params:
            if self.privacy == "client" and self.gradient_average == "batches":
                raise ValueError(
                    "gradient_average=batches sends how many batches a client has; with privacy use clients"
                )
            return self

        def idle(self) -> dict[str, str]:
            alone = ("upsilon", "half", "gradient_average")
            return {**super().idle(), **({} if self.gamma else dict.fromkeys(alone, "gamma is 0"))}

    params: Params

    def initial(self, model: ModelState) -> Mapping[str, Tensor]:
        # Empty until the head's size is seen in the first replies; the average starts from zero.
        return {"target": torch.zeros(0)}

    def round(self, fed: Federation, state: State) -> State:
        gradients = fed.map(self.head_gradient, state.model)
        # Over clients, or over all their mini-batches as the published code does it.
        mean = (gradients.sum("gradient") / float(gradients.sum("batches"))).to(state.model.parameters.dtype)
        target = ema(state.target if len(state.target) else None, mean, self.params.upsilon)
        updates = fed.map(self.train, state.model, target=target)
        diagnostics = {"target_norm": float(target.norm())}
        if gradients.has("square"):  # withheld with privacy=client
            diagnostics = {"alignment_penalty": _spread(gradients, target), **diagnostics}
        return state.step(self.aggregate(updates), diagnostics, target=target)

    @phase(
        gradient=Sends(
            "head",
            "gradient of the client's mean loss by the classifier, or the sum of it over mini-batches",
            server_sees="sum",
            bounded=2,  # near the optimum of most clients theirs is small, and another's honestly much larger
            privacy="noise",
        ),
        batches=Sends(
            SCALAR,
            "gradients in that sum: 1, or the number of mini-batches",
            server_sees="sum",
            range=COUNT,
            privacy="public",
        ),
        square=Sends(
            SCALAR, "squared length of the mean gradient, times that number", server_sees="sum", range=(0.0, LARGEST)
        ),
    )
    def head_gradient(self, client: Client, model: Model) -> Named:
        model.train()
        gradient, count = torch.zeros_like(model.vector[model.layout.head]), 1
        weights = self.class_weights(client, model)
        if self.params.gradient_average == "batches":
            steps, examples, count = client.steps, client.examples, 0
            for x, y in client.batches(self.params.batch_size, least=self.least_rows(model)):
                gradient += self._of_head(model, x, y, weights)
                count += 1
            client.steps, client.examples = steps, examples  # a look at the gradient is no local step
        else:
            for x, y in client.sweep(client.training):
                gradient += self._of_head(model, x, y, weights) * (len(y) / client.samples)
        return {"gradient": gradient, "batches": count, "square": float(gradient.cpu().double().square().sum()) / count}

    @stacked_form("head_gradient", rows="training")
    def head_gradient_stack(self, clients: Sequence[Client], model: Stack, read: Passes) -> list[Named] | None:
        if self.params.gradient_average == "batches" or self.params.class_weights != "none":
            return None
        gradient = torch.zeros_like(model.vector[:, model.layout.head])
        model.train()
        for where, (x, y) in read():
            part = model.part(where)
            if not _is_closed_form(part.as_model, y, None):
                return None
            with torch.no_grad():
                features = part.features(x)
                weight, bias = linear_head_gradient(features, part.head(features), y)
            parts = [weight.flatten(1), bias] if model.spec.head_bias else [weight.flatten(1)]
            gradient[where] += torch.cat(parts, dim=1) * (y.shape[1] / clients[where.start].samples)
        return [{"gradient": g, "batches": 1, "square": float(g.double().square().sum())} for g in gradient.cpu()]

    def implausible(self, phase: str, values: Named, samples: int, validation: int | None) -> str | None:
        if phase == "head_gradient":
            batches = self.params.gradient_average == "batches"
            most = self.work(samples, 1)[0] if batches else 1
            if not 1 <= float(values["batches"]) <= most:
                return f"'batches' is {float(values['batches']):g}, and it can be 1 to {most}"
        return super().implausible(phase, values, samples, validation)

    def _of_head(self, model: Model, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        with torch.no_grad():
            features = model.features(x)
        return _head_gradient(model, features, y, weights, differentiable=False)[1].detach()

    def why_not_stacked(self, spec: ModelSpec) -> str | None:
        if self.params.gamma and (spec.head != "linear" or self.params.class_weights != "none"):
            return "fediir takes second derivatives where its head is not linear or classes have weights"
        return None

    def local_gradient(self, model: Model, batch: Batch, local: Local) -> Tensor:
        if self.params.gamma == 0.0 or not _is_closed_form(model, batch.y, local.shared.get("class_weights")):
            return super().local_gradient(model, batch, local)
        # Derivatives through the head are closed forms, so autograd is needed for the featurizer only.
        features = model.features(batch.x)
        aligned = local.once("aligned head", lambda: self._aligned(model, local.target))
        value, by_features, by_head = aligned(features, batch.y)
        model.backward_from(features, by_features, by_head)
        return value

    def _aligned(self, model: Model, target: Tensor) -> AlignedHead:
        last = model.head.last
        return AlignedHead(last.weight, last.bias, target, self._weight)

    @property
    def _weight(self) -> float:
        gamma: float = self.params.gamma
        return gamma if self.params.half else 2 * gamma

    def loss(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        features, weights = model.features(batch.x), shared.get("class_weights")
        if self.params.gamma == 0.0:
            return task_loss(model.head(features), batch.y, class_weights=weights)
        gamma = self._weight
        target: Tensor = shared["target"]
        if _is_closed_form(model, batch.y, weights):
            last = model.head.last
            return aligned_cross_entropy(features, last.weight, last.bias, batch.y, target, gamma)
        risk, gradient = _head_gradient(model, features, batch.y, weights, differentiable=True)
        return risk + gamma / 2 * (gradient - target).square().sum()


def _spread(gradients: Replies, target: Tensor) -> float:
    """The mean of ‖g_c − g̃‖² over clients, from sums over them alone; clients count by their number of gradients."""
    squares, total, goal = gradients.sum("square"), gradients.sum("gradient"), target.double()
    return float(squares - 2 * total @ goal) / float(gradients.sum("batches")) + float(goal @ goal)


def _is_closed_form(model: Model, y: Tensor, weights: Tensor | None) -> bool:
    """Return whether the head's gradient has a closed form: for a linear head and classes of equal weight."""
    return model.spec.head == "linear" and not y.is_floating_point() and weights is None


def _head_gradient(
    model: Model, features: Tensor, y: Tensor, weights: Tensor | None, differentiable: bool
) -> tuple[Tensor, Tensor]:
    """The risk and its gradient by the head, flat, in the order of the head's part of the parameter vector."""
    logits = model.head(features)
    risk = task_loss(logits, y, class_weights=weights)
    if _is_closed_form(model, y, weights):
        weight, bias = linear_head_gradient(features, logits, y)
        return risk, torch.cat([weight.reshape(-1), bias]) if model.spec.head_bias else weight.reshape(-1)
    parts = torch.autograd.grad(risk, list(model.head.parameters()), create_graph=differentiable)
    return risk, torch.cat([part.reshape(-1) for part in parts])
