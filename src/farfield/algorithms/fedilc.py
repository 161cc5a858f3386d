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
client's graph leaves it, as it would have to in the published code. Where a model draws (dropout, a Gaussian
representation), both exchanges draw the same.

Differs from the paper in: see `differences`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from farfield.algorithms.fedavg import Direction, FedAvg
from farfield.algorithms.fedilc_final_layer import (
    final_layer_rows,
    flat,
    keep_moments,
    layers_of,
    moments_of_rows,
    take_moments,
    weight_and_bias,
)
from farfield.algorithms.fedilc_gradients import (
    gradient_of_rows,
    gradients_and_variances,
    penalty_gradients,
    penalty_of_rows,
)
from farfield.algorithms.full_gradients import full_gradients
from farfield.algorithms.parameters import choices, fixed, linear_range, log_range, parameter
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.algorithms.supports import AtLeast, No, Supports
from farfield.federation.client import Client
from farfield.federation.federation import Federation, Replies
from farfield.federation.phase import SCALAR, Named, Passes, Sends, phase, stacked_form
from farfield.federation.reply_checks import LARGEST
from farfield.math import GradientMoments, weighted_geometric_mean, without_rounding_noise
from farfield.models import Model, Stack, task_loss

#: Why the weights of clients have no effect.
SAME_WEIGHT = "the geometric mean gives all clients the same weight"
NO_STATISTICS = No("takes one gradient per round and keeps no running statistics")
NO_SINGLE_GRADIENTS = No("compares the clients' gradients entry by entry, and a sum has none of them")
PAPER = "Zhu et al., FedILC: Weighted Geometric Mean and Invariant Gradient Covariance, 2022"


class FedILC(FedAvg):
    """One gradient per client and round; what differs between the variants is which mean is taken where."""

    family: ClassVar[str] = "invariance"
    paper: ClassVar[str] = PAPER
    differences: ClassVar[tuple[str, ...]] = (
        "a real federated protocol with a second exchange; one upload cannot give the gradient of the Fishr term",
        "an exact zero is in neither sign's set; the paper's definition (one zero makes the mean zero, so a silent "
        "ReLU freezes its weights) is zeros=paper, the code's (zeros are negative, epsilon 1e-10) zeros=published",
        "under GroupNorm, entries that are rounding noise count as exact zeros",
        "Fishr is the mean over clients as the paper writes it; the published code's sum is fishr_reduction=sum",
        "server Adam as in the published code; the paper's plain step is server_optimizer=sgd",
        "no agreement mask: with the published threshold 0 it is all ones",
    )
    phases: ClassVar[tuple[str, ...]] = ("gradient",)
    single_step: ClassVar[bool] = True
    supports: ClassVar[Supports] = Supports(
        norm_average=NO_STATISTICS,
        norm_local=NO_STATISTICS,
        record_privacy=No("takes variances and geometric means of gradients, in which one row has no bounded part"),
        client_privacy=No("takes geometric means of gradients, which noise turns into noise"),
        secure_sums=NO_SINGLE_GRADIENTS,
    )
    #: Which mean of the clients' gradients is taken.
    over_clients: ClassVar[Literal["arithmetic", "geometric"]] = "arithmetic"

    class Params(FedAvg.Params):
        lr: float = parameter(1.0, "factor on the gradient before the server optimizer", fixed(), gt=0)
        server_optimizer: Literal["sgd", "adam", "yogi"] = parameter("adam", "what applies the direction")
        server_lr: float = parameter(3e-3, "η, global step size", log_range(1e-5, 1e-1), gt=0)
        server_momentum: float = parameter(0.9, "β₁ of server adam", linear_range(0.0, 0.99), ge=0, lt=1)
        server_beta2: float = parameter(0.999, "β₂ of server adam", choices(0.9, 0.99, 0.999), ge=0, lt=1)
        server_epsilon: float = parameter(1e-8, "ε of server adam", log_range(1e-8, 1e-1), gt=0)
        server_bias_correction: bool = parameter(True, "server adam as in torch.optim.Adam")
        weighting: Literal["samples", "uniform"] = parameter("uniform", "weight of a client in the mean")
        zeros: Literal["neither", "paper", "published"] = parameter(
            "neither", "exact zeros: in neither sign's set, in both, or (published code) in the negative one"
        )

        #: Whether the method takes a geometric mean somewhere.
        geometric: ClassVar[bool] = True

        def idle(self) -> dict[str, str]:
            # Epochs and batch size still say how many rounds there are at equal local steps.
            unused = ("momentum", "weight_decay", "optimizer")
            return {
                **super().idle(),
                **dict.fromkeys(unused, "there is one gradient per round and no local optimizer"),
                **({} if self.geometric else {"zeros": "no geometric mean is taken"}),
            }

    params: Params

    def round(self, fed: Federation, state: State) -> State:
        gradients = fed.map(self.gradient, state.model)
        return state.step(self.aggregate(gradients))

    @phase(
        gradient=Sends("parameters", "the client's gradient", is_update=True),
        loss=Sends(SCALAR, "mean training loss"),
    )
    def gradient(self, client: Client, model: Model) -> Named:
        client.steps += 1
        client.examples += client.samples
        model.train()
        gradient, total = torch.zeros_like(model.vector), 0.0
        weights = self.class_weights(client, model)
        for x, y in client.sweep(client.training):
            loss = task_loss(model(x), y, class_weights=weights) * (len(y) / client.samples)
            model.backward(loss)
            gradient += model.gradient
            total += float(loss.detach())
        return {"gradient": self.settle(model, gradient), "loss": total}

    @stacked_form("gradient", rows="training")
    def gradient_stack(self, clients: Sequence[Client], model: Stack, read: Passes) -> list[Named] | None:
        weights = [self.class_weights(client, model.as_model) for client in clients]
        return full_gradients(
            clients, model, read, weights, lambda part, batch, own: task_loss(part(batch.x), batch.y, class_weights=own)
        )

    def settle(self, model: Model, gradients: Tensor) -> Tensor:
        """Gradients as a geometric mean may see them: rounding noise of what GroupNorm makes zero has no sign."""
        if not self.params.geometric or model.spec.norm != "group":
            return gradients
        return without_rounding_noise(gradients, layers_of(model))

    def updates(self, replies: Replies) -> Tensor:
        return replies.stack("gradient").mul_(-self.params.lr)

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        if self.over_clients == "geometric":
            return self.geometric_mean(updates)
        return super().combine(updates, weights)

    def geometric_mean(self, updates: Tensor) -> Tensor:
        """The geometric mean of descent steps; the published rule for zeros is about gradients, which point uphill."""
        if self.params.zeros == "published":
            return -weighted_geometric_mean(-updates, "published")
        return weighted_geometric_mean(updates, self.params.zeros)


class FedILCWithFishr(FedILC):
    """FedILC with the Fishr penalty on the final layer's gradient variance."""

    phases: ClassVar[tuple[str, ...]] = ("gradient_and_variance", "variance_gradient")
    receives: ClassVar[Mapping[str, Mapping[str, Sends]]] = {
        "variance_gradient": {"mean_variance": Sends("final layer", "v̄, the clients' mean variance")}
    }
    penalty_weight: ClassVar[str | None] = "fishr"
    float64_at_clients: ClassVar[bool] = True
    supports: ClassVar[Supports] = replace(
        FedILC.supports,
        regression=No("needs class labels: its penalty is on cross-entropy gradients"),
        clients=AtLeast(2, "compares clients with each other"),
    )

    class Params(FedILC.Params):
        fishr: float = parameter(1.0, "λ, weight of the Fishr penalty", log_range(1e-2, 1e3), ge=0)
        fishr_reduction: Literal["mean", "sum"] = parameter("mean", "over clients: the paper's, or the code's")

        def idle(self) -> dict[str, str]:
            return super().idle() if self.fishr else {**super().idle(), "fishr_reduction": "fishr is 0"}

    params: Params

    def round(self, fed: Federation, state: State) -> State:
        first = fed.map(self.gradient_and_variance, state.model)
        aggregate = self.aggregate(first)
        mean = first.sum("variance", own_dtype=True) / len(first)
        second = fed.map(self.variance_gradient, state.model, among=first.clients, mean_variance=mean)
        penalty, notes = self._penalty_gradient(first, second)
        direction = aggregate.direction - self.params.lr * self.params.fishr * penalty
        diagnostics = {"fishr_penalty": float(second.sum("deviation")) / self._divisor(first)}
        if self.over_clients == "geometric":
            diagnostics["geometric_to_arithmetic"] = self._agreement(first, aggregate.direction)
        if first.has("geometric_to_arithmetic"):
            diagnostics["geometric_to_arithmetic"] = float(first.stack("geometric_to_arithmetic").mean())
        return state.step(replace(aggregate, direction=direction), diagnostics, notes)

    def _divisor(self, first: Replies) -> int:
        return len(first) if self.params.fishr_reduction == "mean" else 1

    def _penalty_gradient(self, first: Replies, second: Replies) -> tuple[Tensor, tuple[str, ...]]:
        """The gradient of the penalty from its clients' parts, and what there is to say if some are missing.

        Only together are the parts the exact gradient: the deviations from v̄ must add up to zero.
        """
        none = torch.zeros_like(torch.as_tensor(first[0].values["gradient"]))
        if len(first) < 2:
            return none, ("one client is left, and its variance has nothing to agree with",)
        missing = len(first) - len(second)
        if len(second) < 2:
            return none, (f"{missing} clients answered once only; no Fishr term in this round",)
        penalty = (second.sum("penalty_gradient") / self._divisor(first)).to(none.dtype)
        return penalty, (
            f"{missing} clients answered once only; the Fishr gradient lacks their part",
        ) if missing else ()

    def _agreement(self, first: Replies, applied: Tensor) -> float:
        updates = self.updates(first)
        # Under another method's server half the applied direction is not the geometric mean.
        weights = first.weights(self.params.weighting)
        return _ratio(applied if self.server is None else self.combine(updates, weights), updates)

    @phase(
        gradient=Sends("parameters", "the client's gradient", is_update=True),
        variance=Sends(
            "final layer",
            "variance over samples of the final layer's gradients",
            server_sees="sum",
            bounded=2,
            range=(0.0, LARGEST),
        ),
        loss=Sends(SCALAR, "mean training loss"),
        geometric_to_arithmetic=Sends(SCALAR, "length of the geometric mean against the mean's", optional=True),
    )
    def gradient_and_variance(self, client: Client, model: Model) -> Named:
        client.steps += 1
        client.examples += client.samples
        model.train()
        reply, moments = self._gradient_and_moments(client, model)
        keep_moments(client, moments)
        return {**reply, "variance": flat(model, *moments.variance).to(model.vector.dtype)}

    def _gradient_and_moments(self, client: Client, model: Model) -> tuple[dict[str, Any], GradientMoments]:
        """The client's gradient and loss, and the moments of the final layer's: closed forms there, autograd below."""
        moments, weights = GradientMoments(), self.class_weights(client, model)
        gradient, total = torch.zeros_like(model.vector), 0.0
        for look in final_layer_rows(client, model, weights):
            gradient += gradient_of_rows(model, look, moments, client.samples)
            total += len(look.y) / client.samples * float(task_loss(look.logits, look.y, class_weights=weights))
        return {"gradient": self.settle(model, gradient), "loss": total}, moments

    @stacked_form("gradient_and_variance", rows="training")
    def gradient_and_variance_stack(self, clients: Sequence[Client], model: Stack, read: Passes) -> list[Named] | None:
        if type(self)._gradient_and_moments is not FedILCWithFishr._gradient_and_moments:
            return None  # the gradient is a mean over environments inside the client
        return gradients_and_variances(clients, model, read, [self.class_weights(c, model.as_model) for c in clients])

    @phase(
        penalty_gradient=Sends(
            "parameters", "gradient of ‖v_e − v̄‖² with v̄ held constant", server_sees="sum", bounded=4
        ),
        deviation=Sends(SCALAR, "‖v_e − v̄‖²", server_sees="sum", range=(0.0, LARGEST)),
    )
    def variance_gradient(self, client: Client, model: Model, mean_variance: Tensor) -> Named:
        """With c = 2 (v_e − v̄), the gradient of c·v_e: closed forms in the final layer, autograd below it."""
        model.train()
        weights = self.class_weights(client, model)
        moments = take_moments(client, model) or moments_of_rows(client, model, weights)
        gap = flat(model, *moments.variance) - mean_variance.double()
        factors = weight_and_bias(model, gap * (2.0 / client.samples))
        total = torch.zeros_like(model.vector)
        for look in final_layer_rows(client, model, weights):
            total += penalty_of_rows(model, look, moments, factors, weights)
        return {"penalty_gradient": total, "deviation": float(gap.square().sum())}

    @stacked_form("variance_gradient", rows="training")
    def variance_gradient_stack(
        self, clients: Sequence[Client], model: Stack, read: Passes, mean_variance: Tensor
    ) -> list[Named] | None:
        weights = [self.class_weights(client, model.as_model) for client in clients]
        return penalty_gradients(clients, model, read, weights, mean_variance)


@register
class Geometric(FedILC):
    """The geometric mean of the clients' gradients. As a server half, of any client method's updates."""

    name: ClassVar[str] = "fedilc-geometric"
    server_half: ClassVar[frozenset[str]] = frozenset({"rule"})
    supports: ClassVar[Supports] = replace(FedILC.supports, clients=AtLeast(2, "takes a mean over clients"))

    class Params(FedILC.Params):
        def idle(self) -> dict[str, str]:
            return {**super().idle(), "weighting": SAME_WEIGHT}

    def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> Tensor | Direction:
        direction = self.geometric_mean(updates)
        return Direction(direction, {"geometric_to_arithmetic": _ratio(direction, updates)})


@register
class Fishr(FedILCWithFishr):
    """Fishr with the arithmetic mean: the row that the paper calls FedCurv."""

    name: ClassVar[str] = "fedilc-fishr"

    class Params(FedILCWithFishr.Params):
        geometric: ClassVar[bool] = False


@register
class InterGeo(FedILCWithFishr):
    """Fishr and the geometric mean over clients: Algorithm 1."""

    name: ClassVar[str] = "fedilc-inter-geo"
    over_clients: ClassVar[Literal["arithmetic", "geometric"]] = "geometric"

    class Params(FedILCWithFishr.Params):
        def idle(self) -> dict[str, str]:
            return {**super().idle(), "weighting": SAME_WEIGHT}


def _ratio(direction: Tensor, updates: Tensor) -> float:
    """Length of the geometric mean against the arithmetic one's: 1 where all agree, near 0 where nobody does."""
    return length_ratio(direction, updates.mean(dim=0))


def length_ratio(geometric: Tensor, arithmetic: Tensor) -> float:
    length = arithmetic.norm()
    return float(geometric.norm() / length) if length > 0 else 0.0
