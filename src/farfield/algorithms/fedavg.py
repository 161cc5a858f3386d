"""FedAvg, and the base class of every method.

Clients train locally and send the change of their parameters; the server adds the weighted mean of the changes to the
global model.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017. Algorithm 1.

A method overrides what differs:

- client half, as hooks of the engine's loop of local training: `before_training`, `loss` (a term that needs the data),
  `penalty` and `adjust` (a term in the parameters alone, and its gradient), `after_training`; further phases;
- server half: `combine` (the method's own mean), `rule` (what a server method does with any client method's updates),
  the server optimizer's settings;
- the round itself: `round`, when there is more than one exchange; `initial`, when the server keeps something.

Differs from the paper in: updates are sent instead of models (the same thing for the mean), the last short batch of an
epoch is kept, and averaging can be uniform, as most papers on unseen domains do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from farfield.algorithms.common_settings import CommonSettings
from farfield.algorithms.registry import AlgorithmError, register
from farfield.algorithms.state import Aggregate, State
from farfield.algorithms.supports import Misfit, No, Supports, norm_in_privacy
from farfield.algorithms.validation_figures import implausible_figures, validation_figures
from farfield.federation.bounding import Bound
from farfield.federation.client import Batch, Client
from farfield.federation.federation import Federation, Replies
from farfield.federation.local_optimizer import LocalOptimizer
from farfield.federation.local_training import STEP_HOOKS, Local, load_own_buffers, plain, train_client
from farfield.federation.outgoing_updates import UpdateStep
from farfield.federation.phase import (
    SCALAR,
    Named,
    Passes,
    Sends,
    declared_phases,
    inherit_declarations,
    local_training,
    phase,
    stacked_form,
)
from farfield.federation.reply_checks import LARGEST
from farfield.federation.secure_sums.quantise import MOST_CLIENTS
from farfield.federation.secure_sums.summing_step import LEAST_CLIENTS
from farfield.math import weighted_mean
from farfield.models import Model, ModelSpec, ModelState, Stack, task_loss
from farfield.privacy.record_level import RecordLevelTraining

#: The value of a term in the parameters alone, and its gradient: one is nothing without the other.
_PAIR = ("penalty", "adjust")
#: A share of the rows; a mean or summed loss, of which none is negative; a number of rows.
SHARE, LOSS, COUNT = (0.0, 1.0), (0.0, LARGEST), (0.0, float(1 << 53))
#: What decides how the server half uses the replies.
_SERVER_HOOKS = ("round", "aggregate", "updates", "combine", "rule")
#: With more domains than this their cosines say nothing to a reader, and fill the records.
MOST_COSINES = 20


@dataclass(frozen=True)
class Direction:
    """A direction, with diagnostics by name and notes on anything unusual."""

    direction: Tensor
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


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
    #: One gradient per round instead of local training: at equal local steps it needs many more rounds.
    single_step: ClassVar[bool] = False
    #: Settings with which the method is FedAvg, for the battery to check; None if there are none.
    fedavg_when: ClassVar[Mapping[str, Any] | None] = None
    #: Whether the method is FedAvg when there is one client only.
    fedavg_with_one_client: ClassVar[bool] = False
    #: One client with everybody's data instead of a federation: a reference, not a method.
    pooled: ClassVar[bool] = False
    #: Whether there is anything to train; if not, one round with all clients is the whole method.
    trains: ClassVar[bool] = True
    #: Whether training ends in one model for all; a method that keeps one model per client says False.
    one_model: ClassVar[bool] = True
    #: Whether the hooks of a step work on a stack of clients too. Each class says it for step hooks of its own.
    stackable: ClassVar[bool] = True
    #: Whether clients compute in float64, which Apple's GPUs do not have; the server always may.
    float64_at_clients: ClassVar[bool] = False
    #: The output of the cohort's phase that is averaged into the direction.
    sent_update: ClassVar[str] = "update"
    #: What the method works with, and why not with the rest; it is refused by this and listed with it.
    supports: ClassVar[Supports] = Supports(record_privacy=True, client_privacy=True)
    #: What the server shares with a phase besides the model, by phase and name. A deployed site takes nothing else.
    #: `is_update` marks a gradient, whose length a site limits.
    receives: ClassVar[Mapping[str, Mapping[str, Sends]]] = {}
    #: What kind of model the method needs; the model factory obliges.
    representation: ClassVar[Literal["plain", "gaussian"]] = "plain"

    class Params(CommonSettings):
        """The settings of FedAvg: those that all methods have."""

    #: Each method repeats this line below its own `Params`, so that `self.params` has the right type in it.
    params: Params

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherit_declarations(cls)
        if "differences" not in vars(cls) and FedAvg in cls.__bases__:
            cls.differences = ()  # FedAvg's differences from its paper are not those of another method
        if "stackable" not in vars(cls) and any(hook in vars(cls) for hook in STEP_HOOKS):
            cls.stackable = False  # nor is this, for hooks of a step that nobody has thought of
        declared = "supports" in vars(cls)
        if not declared and _has_a_loss(cls):
            # Not inherited: a loss that nobody has thought of would ignore the weights without a word.
            cls.supports = replace(cls.supports, class_weights=No("does not say that its own loss weighs classes"))
        if not declared and (_reads_rows(cls) or _loses_otherwise(cls)):
            # Nor is a promise of privacy, for code that sees rows and that nobody has thought of.
            cls.supports = replace(
                cls.supports,
                record_privacy=No("does not say how much one row changes what it sends"),
                client_privacy=No("does not say what of its replies gets noise"),
            )
        if "supports" not in vars(cls) and any(name in vars(cls) for name in _SERVER_HOOKS):
            # Not inherited either: a server half that reads single updates has none of them in a secure sum.
            cls.supports = replace(cls.supports, secure_sums=No("does not say that its server half needs sums alone"))
        _check_hooks(cls)

    def __init__(self, params: Params | None = None, server: FedAvg | None = None, rounds: int | None = None) -> None:
        self.params = params if params is not None else self.Params()
        #: The method right of the '+' whose `rule` replaces this one's, if any.
        self.server = server
        #: How many rounds the run has, for a method that does not do the same in all; None where nobody has said.
        self.rounds = rounds
        self._check_what_the_server_sees()

    def _check_what_the_server_sees(self) -> None:
        given: Any = self.params
        if not isinstance(given, CommonSettings):
            return  # a plan refuses it, with a sentence
        if self.params.secure_sums:
            self._refuse(self.limits().of_settings(self.params))
            if self.server is not None:
                raise Misfit(
                    f"{self.server.name} needs each client's update, and with secure_sums the server receives only "
                    "their sum; omit secure_sums"
                )
            return
        update = declared_phases(self).get("train", {}).get("update")
        if update is None or update.server_sees == "each":
            return
        if self.server is not None:
            raise AlgorithmError(f"{self.server.name} needs each client's update, and {self.name} sends only their sum")
        own = [
            hook for hook in ("updates", "combine", "rule") if getattr(type(self), hook) is not getattr(FedAvg, hook)
        ]
        if own:
            raise AlgorithmError(f"{self.name}'s '{own[0]}' needs each client's update, and only their sum is sent")
        if self.params.weighting != "uniform":
            raise AlgorithmError(f"{self.name} sends only the sum of its updates: set weighting=uniform")

    @classmethod
    def model_for(cls, spec: ModelSpec) -> ModelSpec:
        """Return the model that the method trains where others train `spec`."""
        if cls.representation == spec.representation:
            return spec
        return spec.model_copy(update={"representation": cls.representation})

    def limits(self) -> Supports:
        """Return what the method supports with its settings: `supports`, unless a setting lifts a limit."""
        return self.supports

    def check_settings(self) -> None:
        """Refuse settings of local training that the method does not support (Misfit)."""
        self._refuse(self.limits().of_settings(self.params))

    def check(self, spec: ModelSpec, kind: str, clients: int) -> None:
        """Refuse a model, a kind of task or a number of clients that the method does not support (Misfit).

        Override it only for what `supports` cannot say, and call the one of the base class.
        """
        self._refuse(self.limits().of_task(kind, spec, clients, self.rounds))
        self._refuse(norm_in_privacy(self.params.privacy, spec.norm))
        self.check_cohort(clients)

    def check_cohort(self, clients: int) -> None:
        """Refuse a number of clients in a round that is too small or too large for a secure sum (Misfit)."""
        least = self.params.secure_least or LEAST_CLIENTS
        if self.params.secure_sums and not least <= clients <= MOST_CLIENTS:
            raise Misfit(
                f"{self.name} with secure_sums needs {least} to {MOST_CLIENTS} clients in a cohort, not {clients}: "
                "the sum of fewer reveals single clients; omit secure_sums"
            )

    def check_server(self, clients: int) -> None:
        """As `check`, for the method as the server half of another: refuse a number of clients."""
        self._refuse(self.limits().of_clients(clients))

    def _refuse(self, why: str | None) -> None:
        if why is not None:
            raise Misfit(f"{self.name} {why}")

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

    @local_training(
        update=Sends("parameters", "local parameters minus the broadcast ones", is_update=True, in_sum="weighting"),
        loss=Sends(SCALAR, "mean training loss over the local steps", in_sum="weighting"),
        buffers=Sends(
            "buffers", "running statistics, where the norm policy averages them", optional=True, in_sum="samples"
        ),
    )
    def train(self, client: Client, model: Model, **shared: Any) -> Named:
        """Train locally: the engine's loop, with the hooks below."""
        hooks = RecordLevelTraining(self, client) if self.params.privacy == "record" else self
        return train_client(hooks, client, model, shared)

    def why_not_stacked(self, spec: ModelSpec) -> str | None:
        """Return why the step hooks do not work on a stack of such models with these settings; None if they do."""
        return None

    @plain
    def before_training(self, client: Client, model: Model, **shared: Any) -> Mapping[str, Tensor]:
        """Prepare one client's training: return tensors that the steps need, by name."""
        return {}

    @plain
    def after_training(self, client: Client, model: Model, local: Local) -> Named:
        """Finish one client's training: keep what stays at the client, return what the reply has besides the update.

        Declare what it returns: `@adds_to("train", name=Sends(...))`.
        """
        return {}

    def local_optimizer(self) -> LocalOptimizer:
        """The optimizer of local training, made anew for every round."""
        p = self.params
        return LocalOptimizer(p.optimizer, p.lr, p.momentum, p.weight_decay)

    @property
    def update_steps(self) -> tuple[UpdateStep, ...]:
        """The steps that change a reply before it leaves the client, in order."""
        return self.params.update_steps()

    @property
    def bound(self) -> Bound | None:
        """How long a client's update may be before the server cuts it; None for any length."""
        return self.params.server_bound()

    def batches(self, client: Client, model: Model) -> Iterator[Batch]:
        """The mini-batches of local training in this round, one per local step."""
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

    def most_work(self, samples: int, round: int) -> tuple[int, int] | None:
        """Return the most steps and examples that a client with so many rows can make in one phase of a round.

        A server holds what clients say against it. None, and anything goes, where a method has batches of its own and
        does not say.
        """
        if type(self).batches is not FedAvg.batches:
            return None
        steps, examples = self.work(samples, self.epochs(round), self.params.local_steps)
        if self.params.privacy == "record":
            # A private client counts the mean size of a batch in every step: what it drew is secret.
            examples = max(examples, steps * (min(self.params.batch_size, samples) or samples))
        return steps, examples

    def work(self, samples: int, epochs: int, steps: int | None = None) -> tuple[int, int]:
        """Return the steps and examples of so many passes over the rows, or of so many steps."""
        size = min(self.params.batch_size, samples) or samples
        if steps is None:
            return epochs * -(-samples // size), epochs * samples
        # A last batch that is too short for BatchNorm joins the one before it.
        return max(steps, 1), max(steps * min(2 * size, samples), samples)

    def implausible(self, phase: str, values: Named, samples: int, validation: int | None) -> str | None:
        """Return why what a client reports cannot be, in one phrase; None if it can.

        `samples` are its training rows, `validation` the most validation rows that it can have, None if unknown. What
        each value alone can be is declared with it (`Sends.range`); here is what several of them say together.
        """
        return implausible_figures(values, validation) if phase == "evaluate" else None

    @plain
    def loss(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        """The local objective on a batch: the risk, plus any term that needs the data.

        Shared and prepared values arrive by name. In a stack of clients it is one value per client.
        """
        return task_loss(model(batch.x), batch.y, class_weights=shared.get("class_weights"))

    def row_losses(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        """The loss of each row, of which `loss` is the mean: what record-level privacy bounds. Rows must not mix."""
        return task_loss(model(batch.x), batch.y, "none")

    @plain
    def class_weights(self, client: Client, model: Model) -> Tensor | None:
        """Return a factor per class for the loss of the client's rows; None where all weigh the same.

        By the client's own counts: nothing leaves the client for it. In local training `loss` gets them by the name
        `class_weights`; another phase that has a loss asks for them here.
        """
        if self.params.class_weights == "none":
            return None
        return client.balanced_weights(max(2, model.layout.outputs))

    @plain
    def local_gradient(self, model: Model, batch: Batch, local: Local) -> Tensor:
        """Put the gradient of `loss` into `model.gradient`, and return the loss.

        Override it only where the gradient has a shorter way than autograd; the battery checks that it is the same.
        """
        loss = self.loss(model, batch, **local.shared)
        model.backward(loss)
        return loss.detach()

    def penalty(self, local: Local) -> Tensor:
        """The value of a term in the parameters alone. `adjust` adds its gradient; the battery checks the two agree."""
        return local.parameters.new_zeros(local.parameters.shape[:-1])

    @plain
    def adjust(self, gradient: Tensor, local: Local) -> None:
        """Add the gradient of `penalty` to the flat gradient, in place."""

    @phase(
        loss=Sends(SCALAR, "mean loss on the client's validation rows", range=LOSS, in_sum="rows"),
        accuracy=Sends(SCALAR, "accuracy on the client's validation rows", range=SHARE, in_sum="rows"),
        rows=Sends(SCALAR, "number of validation rows", range=COUNT, in_sum="sum"),
        class_rows=Sends("classes", "validation rows of each class", optional=True, range=COUNT, in_sum="sum"),
        class_loss=Sends(
            "classes", "summed loss on the validation rows of each class", optional=True, range=LOSS, in_sum="sum"
        ),
        class_correct=Sends(
            "classes", "correctly classified validation rows of each class", optional=True, range=COUNT, in_sum="sum"
        ),
        auroc=Sends(
            SCALAR,
            "AUROC on the client's validation rows, where it has several classes",
            optional=True,
            range=SHARE,
            in_sum="rows",
        ),
    )
    def evaluate(self, client: Client, model: Model) -> Named:
        """Measure the broadcast model on the client's validation rows."""
        load_own_buffers(client, model)
        if model.spec.norm == "local" and "buffers" not in client.state:
            model.eval_unseen()  # a client that has not trained yet has no statistics of its own
        else:
            model.eval()
        with torch.no_grad():
            parts = [(model.predict(x), y) for x, y in client.sweep(client.validation)]
        return validation_figures(parts, model.layout.outputs)

    @stacked_form("evaluate", rows="validation")
    def evaluate_stack(self, clients: Sequence[Client], model: Stack, read: Passes) -> list[Named] | None:
        parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in clients]
        model.eval()
        with torch.no_grad():
            for where, (x, y) in read():
                given = model.part(where).predict(x)
                for own, logits, labels in zip(parts[where], given.unbind(), y.unbind(), strict=True):
                    own.append((logits, labels))
        return [validation_figures(own, model.layout.outputs) for own in parts]

    # The server half.

    def aggregate(self, replies: Replies) -> Aggregate:
        """The direction of this round, and the buffers' mean where they travel."""
        weights = replies.weights(self.params.weighting)
        if self.sent_update not in replies.sums:
            updates = self.updates(replies)
            ruled = (self.server or self).rule(updates, weights, self.combine(updates, weights))
            found = ruled if isinstance(ruled, Direction) else Direction(ruled)
            cosines = _cosines(replies, updates, found.direction)
        else:
            # The sum of the updates is all there is: no rule, no weights, and no diagnostics of single updates.
            found, cosines = Direction(self.mean_of_sum(replies)), {}
        diagnostics = {**found.diagnostics, **cosines}
        buffers = None
        if "buffers" in replies.sums:
            buffers = replies.mean("buffers").to(torch.get_default_dtype())
        elif replies.has("buffers"):
            buffers = weighted_mean(replies.stack("buffers"), replies.samples)
        if replies.shows("loss"):
            losses = torch.tensor([float(r.values["loss"]) for r in replies], dtype=torch.float64)
            diagnostics = {"loss": float(losses @ weights), **diagnostics}
        elif "loss" in replies.sums:
            diagnostics = {"loss": float(replies.mean("loss")), **diagnostics}
        return Aggregate(found.direction, buffers, diagnostics, found.notes)

    def mean_of_sum(self, replies: Replies) -> Tensor:
        """The mean of updates of which only the sum is seen."""
        return replies.mean("update").to(torch.get_default_dtype())

    def updates(self, replies: Replies) -> Tensor:
        """The cohort's descent steps, one row per client."""
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


def _has_a_loss(cls: type[FedAvg]) -> bool:
    """Return whether a class defines a loss, or a phase that may contain one."""
    return any(
        name in ("loss", "local_gradient") or (hasattr(member, "__sends__") and name != "evaluate")
        for name, member in vars(cls).items()
    )


def _reads_rows(cls: type[FedAvg]) -> bool:
    """Return whether a class defines anything that runs at a client and sees its rows."""
    hooks = ("before_training", "after_training", "batches", "class_weights", "evaluate", "train", "row_losses")
    return _has_a_loss(cls) or any(name in vars(cls) for name in hooks)


def _loses_otherwise(cls: type[FedAvg]) -> bool:
    """Return whether the class has another loss than the one that `row_losses` gives row by row."""
    of_loss, of_rows = (
        next(number for number, c in enumerate(cls.__mro__) if hook in vars(c)) for hook in ("loss", "row_losses")
    )
    return of_loss < of_rows


def _check_hooks(cls: type[FedAvg]) -> None:
    """Refuse hooks that would silently do nothing."""
    if cls.supports.record_privacy is True and _loses_otherwise(cls):
        raise TypeError(f"{cls.__name__} has a 'loss' of its own, and record-level privacy needs its 'row_losses' too")
    defined = {hook: next(c for c in cls.__mro__ if hook in vars(c)) for hook in ("loss", "local_gradient", *_PAIR)}
    alone = [hook for hook in _PAIR if defined[hook] is not FedAvg]
    if len(alone) == 1:
        other = _PAIR[1 - _PAIR.index(alone[0])]
        raise TypeError(f"{cls.__name__} has '{alone[0]}' and no '{other}': a term has a value and its gradient")
    order = cls.__mro__.index
    shortcut = defined["local_gradient"]
    if cls.local_gradient is not FedAvg.local_gradient and order(defined["loss"]) < order(shortcut):
        raise TypeError(
            f"{cls.__name__} has a 'loss' of its own, and the 'local_gradient' of {shortcut.__name__} never calls it; "
            "write both, or set local_gradient = FedAvg.local_gradient"
        )


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
