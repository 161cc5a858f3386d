"""The loop of local training for a stack of clients, of one run or of several.

The hooks of a client are called one by one, those of a step for as many clients as have a batch of the same length.
Clients are ordered by the lengths of their batches, so that these are always neighbours and nothing is copied. Clients
of methods that differ in what they add to a plain loss, or in their step sizes, share its gradient all the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from farfield.federation.engines.batched.planned_client import (
    Planned,
    PlannedClient,
    RowPool,
    StepReader,
    steps_together,
)
from farfield.federation.engines.batched.stacked_optimizer import StackedOptimizer
from farfield.federation.execution import seed_of_layers
from farfield.federation.local_training import Local, check_names, is_plain
from farfield.federation.phase import Named
from farfield.models import FunctionalStack, Model, ModelState, Random, Stack, stacked_values, why_not_stacked
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.randomness import seed_layers

#: The hooks of local training, and settings that only the server reads.
HOOKS = (
    "train",
    "class_weights",
    "local_optimizer",
    "batches",
    "epochs",
    "before_training",
    "local_gradient",
    "loss",
    "adjust",
    "after_training",
)
SERVER = frozenset({"weighting", "bound", "bound_factor"})


@dataclass
class Member:
    """One client in a stack: what it starts from, what it is to do, and what came of it."""

    method: Any
    client: PlannedClient
    broadcast: ModelState
    shared: Mapping[str, Any]
    #: What the method's hooks read: the shared values, and what it prepared for this client.
    given: dict[str, Any] = field(default_factory=dict)
    start: Tensor | None = None
    random: Random = field(default_factory=lambda: Random(0))
    batches: list[Planned] = field(default_factory=list)
    values: Named = field(default_factory=dict)


def prepare(member: Member, model: Model) -> None:
    """Do what one client does before its steps: its hook, and the draw of its batches."""
    method, client = member.method, member.client
    seed = seed_of_layers(client, "train")
    member.random = Random(seed)
    model.train()
    loaded = not (is_plain(method.before_training) and is_plain(method.class_weights))
    if loaded:
        model.load(member.broadcast)
        seed_layers(client.device, seed)
    shared = {name: v.clone() if isinstance(v, Tensor) and loaded else v for name, v in member.shared.items()}
    weights = method.class_weights(client, model)
    if weights is not None:
        shared["class_weights"] = weights
    prepared = method.before_training(client, model, **shared)
    check_names(shared, prepared)
    member.given = {**shared, **prepared}
    if loaded:  # what the hook has drawn is drawn
        member.random.generator.set_state(torch.default_generator.get_state())
    member.start = model.vector.clone() if loaded else member.broadcast.parameters
    client.steps = client.examples = 0
    member.batches = list(method.batches(client, model))


def train_together(members: Sequence[Member], model: Model, pool: RowPool) -> None:
    """Train prepared clients, whose losses are one and the same, and leave each one's reply in it."""
    settings = _numbered([settings_key(m.method) for m in members])
    order = sorted(range(len(members)), key=lambda n: ([-batch.rows for batch in members[n].batches], settings[n]))
    ordered = [members[n] for n in order]
    starts = torch.stack([m.start for m in ordered if m.start is not None])
    if why_not_stacked(model.spec) is None:
        stack = Stack(model.spec, model.layout, starts.clone())
    else:
        stack = FunctionalStack(model, starts.clone())
    stack.train()
    stack.random = [member.random for member in ordered]
    losses = starts.new_zeros(len(ordered))
    parts = _Parts(ordered, [settings[n] for n in order], stack, starts)
    reader = StepReader(pool, ordered[0].client.training)
    for step, first, last in steps_together([m.batches for m in ordered]):
        batch = reader.read((first, last), [m.batches[step] for m in ordered[first:last]])
        lead = parts.of(first, last)
        losses[first:last] += ordered[first].method.local_gradient(lead.model, batch, lead.local)
        for part in parts.by_settings(first, last):
            part.method.adjust(part.model.gradient, part.local)
            part.optimizer.step(part.model.vector, part.model.gradient, step)
    _reply(ordered, stack, starts, losses, model)


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """The same number for equal keys."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def settings_key(method: Any) -> Hashable:
    """Two methods with one key do the same in local training, whatever their servers do."""
    key: Hashable = vars(method).get("_settings_key")
    if key is None:
        given = method.params.model_dump()
        own = {name: value for name, value in given.items() if not name.startswith("server_") and name not in SERVER}
        key = method._settings_key = (tuple(getattr(type(method), hook) for hook in HOOKS), repr(own))
    return key


@dataclass
class _Part:
    """Neighbours in a stack with one method: its hooks and what they see."""

    method: Any
    model: Stack
    local: Local
    optimizer: StackedOptimizer


class _Parts:
    """The parts of a stack that were asked for, made once."""

    def __init__(self, ordered: Sequence[Member], settings: Sequence[int], stack: Stack, starts: Tensor) -> None:
        self._ordered, self._settings, self._stack, self._starts = ordered, settings, stack, starts
        self._made: dict[tuple[int, int], _Part] = {}
        self._split: dict[tuple[int, int], list[_Part]] = {}
        self._first, self._second = torch.empty(0), torch.empty(0)

    def of(self, first: int, last: int) -> _Part:
        """Neighbours whose losses are the same; the method is the first one's."""
        if (first, last) not in self._made:
            members, where = self._ordered[first:last], slice(first, last)
            names = [n for n in members[0].given if all(n in m.given for m in members)]
            given = {name: stacked_values([m.given[name] for m in members], self._starts.device) for name in names}
            model = self._stack.part(where)
            local = Local(model.vector, self._starts[where], given)
            self._made[first, last] = _Part(members[0].method, model, local, self._optimizer(members[0].method, where))
        return self._made[first, last]

    def by_settings(self, first: int, last: int) -> list[_Part]:
        """The same neighbours, apart where their methods differ."""
        if (first, last) not in self._split:
            bounds = [first]
            for number in range(first + 1, last):
                if self._settings[number] != self._settings[number - 1]:
                    bounds.append(number)
            self._split[first, last] = [self.of(a, b) for a, b in zip(bounds, [*bounds[1:], last], strict=True)]
        return self._split[first, last]

    def _optimizer(self, method: Any, where: slice) -> StackedOptimizer:
        local = method.local_optimizer()
        for name in ("_first", "_second")[: local.slots]:
            if not getattr(self, name).numel():
                setattr(self, name, torch.zeros_like(self._stack.vector))
        return StackedOptimizer(local, self._first[where], self._second[where])


def _reply(ordered: Sequence[Member], stack: Stack, starts: Tensor, losses: Tensor, model: Model) -> None:
    """What each client sends, in the order of `train_client`."""
    updates = (stack.vector - starts).to(CPU)
    for number, (member, total) in enumerate(zip(ordered, losses.tolist(), strict=True)):
        method, client = member.method, member.client
        declared = method.train.__sends__
        reply: dict[str, Any] = {}
        if "update" in declared:
            reply["update"] = updates[number]
        if "loss" in declared:
            reply["loss"] = total / max(client.steps, 1)
        if not is_plain(method.after_training):
            model.load(ModelState(stack.vector[number], member.broadcast.buffers))
            alone = Local(model.vector, starts[number], member.given)
            torch.default_generator.set_state(member.random.generator.get_state())
            reply |= method.after_training(client, model, alone)
        member.values = reply
