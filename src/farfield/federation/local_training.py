"""The loop of local training. It belongs to the engine; a method fills in the hooks.

    before_training   once per client, in training mode: read the client's state, return tensors that the steps need; it
                      may load other parameters into the model, from which training then starts
    local_gradient    at each step: the gradient of the local objective on a mini-batch
    adjust            at each step: add the gradient of a term in the parameters alone
    after_training    once per client: keep state, return what the reply has besides the update

`before_training` and `after_training` see one client. The hooks of a step work on one client and on a stack of clients
alike: in a stack, every tensor has a leading axis with one entry per client, `model` holds as many sets of parameters,
and a loss has one value per client. So a step hook reduces over the last axes only (`sum(-1)`, not `sum()`), and reads
what differs between clients from `local`, never from a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from torch import Tensor

from farfield.federation.client import Batch, Client
from farfield.federation.local_optimizer import LocalOptimizer
from farfield.federation.phase import Named
from farfield.models import Model

#: The hooks that see a stack of clients.
STEP_HOOKS = ("local_gradient", "loss", "adjust", "local_optimizer")

T = TypeVar("T")
Hook = TypeVar("Hook", bound=Callable[..., Any])


@dataclass(frozen=True)
class Local:
    """Local training under way, of one client or of a stack of clients, as the hooks of a step see it.

    `local.target` reads the shared or prepared value named 'target'.
    """

    #: The parameters now, which the optimizer changes in place, and those that training started from.
    parameters: Tensor
    start: Tensor
    #: What the server shared and what `before_training` returned, by name.
    shared: Mapping[str, Any]
    _made: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        shared: Mapping[str, Any] = self.__dict__.get("shared", {})
        if name in shared:
            return shared[name]
        raise AttributeError(f"local training has no '{name}'; it was given {sorted(shared) or 'nothing'}")

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returned at the first step, for the steps that follow."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made


#: What `Local` has itself.
RESERVED = ("parameters", "start", "shared", "once")


class TrainsLocally(Protocol):
    """The hooks that a method fills in."""

    @property
    def train(self) -> Callable[..., Named]: ...
    def class_weights(self, client: Client, model: Model) -> Tensor | None: ...
    def local_optimizer(self) -> LocalOptimizer: ...
    def batches(self, client: Client, model: Model) -> Iterator[Batch]: ...
    def before_training(self, client: Client, model: Model, **shared: Any) -> Mapping[str, Tensor]: ...
    def local_gradient(self, model: Model, batch: Batch, local: Local) -> Tensor: ...
    def adjust(self, gradient: Tensor, local: Local) -> None: ...
    def after_training(self, client: Client, model: Model, local: Local) -> Named: ...


def plain(hook: Hook) -> Hook:
    """Mark a hook as the one that a method without a hook of its own has: an engine knows what it does."""
    hook.__plain__ = True  # type: ignore[attr-defined]
    return hook


def is_plain(hook: Callable[..., Any]) -> bool:
    """Whether a hook is as FedAvg has it."""
    return bool(getattr(hook, "__plain__", False))


def train_client(method: TrainsLocally, client: Client, model: Model, shared: Mapping[str, Any]) -> Named:
    """Train one client and return its reply: the update, the loss and the buffers where they are declared, and
    whatever the method adds. The model is left as trained.
    """
    load_own_buffers(client, model)
    model.train()
    weights = method.class_weights(client, model)
    if weights is not None:
        shared = {**shared, "class_weights": weights}
    prepared = method.before_training(client, model, **shared)
    check_names(shared, prepared)
    local = Local(model.vector, model.vector.clone(), {**shared, **prepared})
    optimizer = method.local_optimizer()
    total = model.vector.new_zeros(())
    client.steps = client.examples = 0  # batches that were drawn before the loop are no local steps
    for batch in method.batches(client, model):
        total += method.local_gradient(model, batch, local)
        method.adjust(model.gradient, local)
        optimizer.step(model.vector, model.gradient)
    declared = method.train.__sends__  # type: ignore[attr-defined]
    reply: dict[str, Tensor | float | int] = {}
    if "update" in declared:
        reply["update"] = model.vector - local.start
    if "loss" in declared:
        reply["loss"] = float(total) / max(client.steps, 1)
    return {**reply, **share_buffers(client, model), **method.after_training(client, model, local)}


def check_names(shared: Mapping[str, Any], prepared: Mapping[str, Any]) -> None:
    """Refuse names that would hide what `Local` has, or one another."""
    for name in (*shared, *prepared):
        if name in RESERVED:
            raise ValueError(f"'{name}' cannot name a shared or prepared value: local.{name} is part of local training")
    for name in prepared:
        if name in shared:
            raise ValueError(f"before_training returns '{name}', which the server shares already; use another name")


def load_own_buffers(client: Client, model: Model) -> None:
    """Load the client's own running statistics, where the norm policy keeps them at the client."""
    if model.spec.norm == "local" and "buffers" in client.state:
        model.buffer_vector.copy_(client.state["buffers"])


def share_buffers(client: Client, model: Model) -> dict[str, Tensor]:
    """Return what a phase that trained sends of the running statistics; keep them where the norm policy says so."""
    if model.layout.buffers and model.spec.norm == "local":
        client.state["buffers"] = model.buffer_vector.clone()
    return {"buffers": model.buffer_vector} if model.layout.buffers and model.spec.norm == "average" else {}
