"""FedAvg, and the base class of every method.

Clients train locally and send the change of their parameters; the server adds the weighted mean of the changes to the
global model.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017. Algorithm 1.

A method overrides what differs:

- client half: `loss` (a term that needs the data), `penalty` and `adjust` (a term in the parameters alone, and its
  gradient), `train`, further phases;
- server half: `combine` (the method's own mean), `rule` (what a server method does with any client method's updates),
  the server optimizer's settings;
- the round itself: `round`, when there is more than one exchange; `initial`, when the server keeps something.

Differs from the paper in: updates are sent instead of models (the same thing for the mean), the last short batch of an
epoch is kept, and averaging can be uniform, as most papers on unseen domains do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from farfield.algorithms.local_optimizer import LocalOptimizer
from farfield.algorithms.registry import register
from farfield.algorithms.state import Aggregate, State
from farfield.federation.client import Batch, Client
from farfield.federation.federation import Federation, Replies
from farfield.federation.phase import SCALAR, Named, Sends, inherit_declarations, phase
from farfield.math import weighted_mean
from farfield.models import Model, ModelSpec, ModelState, predicted_labels, task_loss

#: With more domains than this their cosines say nothing to a reader, and fill the records.
MOST_COSINES = 20


@dataclass(frozen=True)
class Direction:
    """A direction with what there is to tell about it: diagnostics by name, and notes on anything unusual."""

    direction: Tensor
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Local:
    """Local training under way, as `penalty` and `adjust` see it."""

    client: Client
    model: Model
    start: Tensor
    shared: Mapping[str, Any]

    @property
    def parameters(self) -> Tensor:
        return self.model.vector


@register
class FedAvg:
    """Weighted averaging of locally trained models: the baseline that everything is compared with."""

    name: ClassVar[str] = "fedavg"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
    differences: ClassVar[tuple[str, ...]] = (
        "updates are sent instead of models",
        "the last short batch of an epoch is kept",
    )
    #: The phases of a round, in order. Validation (`evaluate`) comes on top, whenever it is measured.
    phases: ClassVar[tuple[str, ...]] = ("train",)
    #: What a method brings to the right of a '+': "rule", "optimizer", or nothing.
    server_half: ClassVar[frozenset[str]] = frozenset()
    #: Whether server halves can be put on this method's updates; if not, why not.
    not_composable: ClassVar[str] = ""
    #: The name of the parameter that weighs the method's extra term, if it has one; several names for several terms.
    penalty_weight: ClassVar[str | tuple[str, ...] | None] = None
    #: One gradient a round instead of local training: at equal local steps it needs many more rounds.
    single_step: ClassVar[bool] = False
    #: Settings with which the method is FedAvg, for the battery to check; None if there are none.
    fedavg_when: ClassVar[Mapping[str, Any] | None] = None
    #: Whether the method is FedAvg when there is one client only.
    fedavg_with_one_client: ClassVar[bool] = False
    #: One client with everybody's data instead of a federation: a reference, not a method.
    pooled: ClassVar[bool] = False
    #: What kind of model the method needs; the model factory obliges.
    representation: ClassVar[Literal["plain", "gaussian"]] = "plain"

    class Params(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

        lr: float = Field(0.1, gt=0, description="η_l, step size of local training")
        batch_size: int = Field(32, ge=0, description="B, rows in a mini-batch; 0 means all of them")
        local_epochs: int = Field(1, ge=1, description="E, passes over the client's data in a round")
        schedule: tuple[int, ...] | None = Field(
            None, description="T, local epochs of each round in turn instead of the same number in all"
        )
        local_steps: int | None = Field(None, ge=1, description="K, exactly this many steps instead of epochs")
        momentum: float = Field(0.0, ge=0, lt=1, description="momentum of local SGD, from zero every round")
        weight_decay: float = Field(0.0, ge=0, description="coupled L2 weight of local training")
        optimizer: Literal["sgd", "adam"] = Field("sgd", description="optimizer of local training")
        weighting: Literal["samples", "uniform"] = Field(
            "samples", description="p_u, weight of a client: its share of the samples, or the same for all"
        )
        server_optimizer: Literal["sgd", "adam", "yogi"] = Field("sgd", description="what applies the direction")
        server_lr: float = Field(1.0, gt=0, description="η_g, global step size; 1 with sgd is plain averaging")
        server_momentum: float = Field(0.0, ge=0, lt=1, description="β₁ of the server optimizer")
        server_beta2: float = Field(0.99, ge=0, lt=1, description="β₂ of server adam and yogi")
        server_epsilon: float = Field(1e-3, gt=0, description="τ, adaptivity floor of server adam and yogi")
        server_bias_correction: bool = Field(False, description="server adam as in torch.optim.Adam")
        server_weight_decay: float = Field(0.0, ge=0, description="coupled L2 weight at the server")

        def idle(self) -> dict[str, str]:
            """Settings that have no effect with the others as they are, each with the reason."""
            return {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherit_declarations(cls)

    def __init__(self, params: Params | None = None, server: FedAvg | None = None, rounds: int | None = None) -> None:
        self.params: Any = params if params is not None else self.Params()
        #: The method right of the '+' whose `rule` replaces this one's, if any.
        self.server = server
        #: How many rounds the run has, for a method that does not do the same in all; None where nobody has said.
        self.rounds = rounds

    def check(self, spec: ModelSpec, kind: str, clients: int) -> None:
        """Refuse a model, a kind of task or a number of clients that the method cannot work with (AlgorithmError)."""

    def check_server(self, clients: int) -> None:
        """As `check`, for the method as the server half of another: refuse a number of clients."""

    # The round, as in the paper.

    def start(self, model: ModelState) -> State:
        """The state before the first round."""
        return State(model, self.params, extras=self.initial(model))

    def initial(self, model: ModelState) -> Mapping[str, Tensor]:
        """What the server keeps besides the model, before the first round."""
        return {}

    def round(self, fed: Federation, state: State) -> State:
        updates = fed.map(self.train, state.model)
        return state.step(self.aggregate(updates))

    # The client half.

    @phase(
        update=Sends("parameters", "local parameters minus the broadcast ones"),
        loss=Sends(SCALAR, "mean training loss over the local steps"),
        buffers=Sends("buffers", "running statistics, where the norm policy averages them", optional=True),
    )
    def train(self, client: Client, model: Model, **shared: Any) -> Named:
        """Local training. Returns the update; the model is left as trained."""
        p = self.params
        load_own_buffers(client, model)
        local = Local(client, model, model.vector.clone(), shared)
        optimizer = LocalOptimizer(p.optimizer, p.lr, p.momentum, p.weight_decay)
        total = torch.zeros(())
        model.train()
        for batch in self.batches(client, model):
            total += self.local_gradient(model, batch, **shared)
            self.adjust(model.gradient, local)
            optimizer.step(model.vector, model.gradient)
        reply: dict[str, Tensor | float] = {
            "update": model.vector - local.start,
            "loss": float(total) / max(client.steps, 1),
        }
        return {**reply, **share_buffers(client, model)}

    def batches(self, client: Client, model: Model) -> Iterator[Batch]:
        """The mini-batches of local training in this round, one a local step."""
        p = self.params
        return client.batches(p.batch_size, self.epochs(client.round), p.local_steps, self.least_rows(model))

    @staticmethod
    def least_rows(model: Model) -> int:
        """The fewest rows that a batch may have: BatchNorm cannot normalise one."""
        return 2 if model.layout.buffers else 1

    def epochs(self, round: int) -> int:
        """Local epochs of a round."""
        schedule: tuple[int, ...] = self.params.schedule or (self.params.local_epochs,)
        return schedule[min(round, len(schedule)) - 1]

    def loss(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        """The local objective on a batch: the risk, plus any term that needs the data."""
        return task_loss(model(batch.x), batch.y)

    def local_gradient(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        """Put the gradient of `loss` into `model.gradient`, and return the loss.

        Override it only where the gradient has a shorter way than autograd; the battery checks that it is the same.
        """
        loss = self.loss(model, batch, **shared)
        model.backward(loss)
        return loss.detach()

    def penalty(self, local: Local) -> Tensor:
        """The value of a term in the parameters alone. `adjust` adds its gradient; the battery checks the two agree."""
        return torch.zeros((), dtype=local.parameters.dtype)

    def adjust(self, gradient: Tensor, local: Local) -> None:
        """Add the gradient of `penalty` to the flat gradient, in place."""

    @phase(
        loss=Sends(SCALAR, "mean loss on the client's validation rows"),
        accuracy=Sends(SCALAR, "accuracy on the client's validation rows"),
        rows=Sends(SCALAR, "number of validation rows"),
    )
    def evaluate(self, client: Client, model: Model) -> Named:
        """How the broadcast model does on the client's validation rows."""
        load_own_buffers(client, model)
        if model.spec.norm == "local" and "buffers" not in client.state:
            model.eval_unseen()  # a client that has not trained yet has no statistics of its own
        else:
            model.eval()
        loss, correct = 0.0, 0
        with torch.no_grad():
            for x, y in client.sweep(client.validation):
                logits = model.predict(x)
                loss += float(task_loss(logits, y, reduction="sum"))
                correct += 0 if y.is_floating_point() else int((predicted_labels(logits) == y).sum())
        rows = len(client.validation)
        return {"loss": loss / max(rows, 1), "accuracy": correct / max(rows, 1), "rows": rows}

    # The server half.

    def aggregate(self, replies: Replies) -> Aggregate:
        """The direction of this round, and the buffers' mean where they travel."""
        updates = self.updates(replies)
        weights = replies.weights(self.params.weighting)
        ruled = (self.server or self).rule(updates, weights, self.combine(updates, weights))
        ruled = ruled if isinstance(ruled, Direction) else Direction(ruled)
        diagnostics = dict(ruled.diagnostics)
        buffers = weighted_mean(replies.stack("buffers"), replies.samples) if replies.has("buffers") else None
        if replies.has("loss"):
            losses = torch.tensor([float(r.values["loss"]) for r in replies], dtype=torch.float64)
            diagnostics = {"loss": float(losses @ weights), **diagnostics}
        diagnostics |= _cosines(replies, updates, ruled.direction)
        return Aggregate(ruled.direction, buffers, diagnostics, ruled.notes)

    def updates(self, replies: Replies) -> Tensor:
        """The cohort's descent steps, one row a client."""
        return replies.stack("update")

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        """The method's own mean of the updates."""
        return weighted_mean(updates, weights)

    def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> Tensor | Direction:
        """What this method does, as a server, with the updates of any client method.

        `reference` is the direction of the client method's own `combine`. Returns the direction to apply, alone or
        as `Direction`.
        """
        return reference

    # What is looked at.

    def models(self, state: State) -> list[ModelState]:
        """The models to evaluate. One, unless clients keep their own: then results are averaged over them."""
        return [state.model]


def _cosines(replies: Replies, updates: Tensor, direction: Tensor) -> dict[str, float]:
    """How far the direction goes each domain's way: the cosine with its clients' updates, their mean where several."""
    domains = [reply.domain for reply in replies]
    if len(set(domains)) > MOST_COSINES:
        return {}
    cosines = torch.cosine_similarity(updates, direction.unsqueeze(0), dim=1, eps=1e-30).tolist()
    by_domain: dict[str, list[float]] = {}
    for domain, cosine in zip(domains, cosines, strict=True):
        by_domain.setdefault(domain, []).append(cosine)
    return {f"cosine of {domain}": sum(each) / len(each) for domain, each in by_domain.items()}


def load_own_buffers(client: Client, model: Model) -> None:
    """Where statistics stay at the client, take up its own."""
    if model.spec.norm == "local" and "buffers" in client.state:
        model.buffer_vector.copy_(client.state["buffers"])


def share_buffers(client: Client, model: Model) -> dict[str, Tensor]:
    """What a phase that trained sends of the running statistics; kept at the client where the policy says so."""
    if model.layout.buffers and model.spec.norm == "local":
        client.state["buffers"] = model.buffer_vector.clone()
    return {"buffers": model.buffer_vector} if model.layout.buffers and model.spec.norm == "average" else {}
