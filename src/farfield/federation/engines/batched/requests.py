"""Phases of one run or of several, served together where clients can be a stack, and one by one where not."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.federation.client import Batch, Client, Rows
from farfield.federation.engines.batched.planned_client import PlannedClient, RowPool
from farfield.federation.engines.batched.stacked_training import Member, prepare, settings_key, train_together
from farfield.federation.execution import Outcome, complete, fail, run_phase
from farfield.federation.local_training import is_plain
from farfield.federation.phase import declared_sends, form_of, is_local_training
from farfield.models import Model, ModelState, Stack, why_not_stacked

#: Numbers in the parameters of a stack: with the gradients, moments and updates several times as many are held.
STACK_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Request:
    """A phase that a run wants to be made on some of its clients."""

    algorithm: Any
    phase: str
    model: Model
    broadcast: ModelState
    shared: Mapping[str, Any]
    clients: Sequence[int]
    #: Makes a client as it is before the phase.
    client: Callable[[int], Client]


def why_alone(algorithm: Any, phase: str, model: Model) -> str | None:
    """Return why a phase is run client by client, in one phrase; None if its clients can be a stack."""
    reason = why_not_stacked(model.spec)
    if reason is not None:
        return reason
    if is_local_training(getattr(algorithm, phase)):
        if not algorithm.stackable:
            return f"{algorithm.name} does not say that its hooks work on a stack of clients (stackable)"
        if algorithm.params.privacy == "record":
            return "privacy=record clips the gradient of each row"
        return None
    return None if form_of(algorithm, phase) else f"the phase '{phase}' of {algorithm.name} has no stacked form"


def serve(requests: Sequence[Request], pool: RowPool) -> list[list[Outcome]]:
    """Serve requests, together where they can be. A run's outcomes do not depend on the other requests."""
    outcomes: list[list[Outcome]] = [[] for _ in requests]
    stacks: dict[Hashable, list[tuple[int, Member]]] = {}
    for number, request in enumerate(requests):
        if why_alone(request.algorithm, request.phase, request.model) is not None:
            outcomes[number] = list(_one_by_one(request))
            continue
        for client in request.clients:
            planned = PlannedClient(**vars(request.client(client)), pool=pool)
            member = Member(request.algorithm, planned, request.broadcast, request.shared)
            stacks.setdefault(_stack_key(request), []).append((number, member))
    for members in stacks.values():
        for part in _parts(members):
            for number, outcome in _together(requests, part, pool):
                outcomes[number].append(outcome)
    return outcomes


def _stack_key(request: Request) -> Hashable:
    """Clients with one key can be in one stack."""
    method, name = request.algorithm, request.phase
    shapes = (request.model.spec, tuple(sorted(request.shared)), method.params.class_weights)
    if not is_local_training(getattr(method, name)):
        found = form_of(method, name)
        assert found is not None
        return name, found[0].__func__, repr(method.params), shapes  # type: ignore[attr-defined]
    if is_plain(method.local_gradient) and is_plain(method.loss):
        return name, request.model.spec, method.params.class_weights
    return name, settings_key(method), shapes


def _parts(members: list[tuple[int, Member]]) -> Iterator[list[tuple[int, Member]]]:
    """Stacks that fit into memory."""
    size = max(1, STACK_NUMBERS // max(1, len(members[0][1].broadcast.parameters)))
    for start in range(0, len(members), size):
        yield members[start : start + size]


def _together(
    requests: Sequence[Request], numbered: Sequence[tuple[int, Member]], pool: RowPool
) -> Iterator[tuple[int, Outcome]]:
    """Run clients as a stack; if that fails, each alone, so that an error is its own."""
    started = time.perf_counter()
    lead = requests[numbered[0][0]]
    outcomes = {id(m): Outcome(m.client.id, m.client.domain, m.client.samples) for _, m in numbered}
    fit: list[Member] = []
    training = is_local_training(getattr(lead.algorithm, lead.phase))
    for _, member in numbered:
        try:
            if training:
                prepare(member, lead.model)
            fit.append(member)
        except Exception as error:  # a client's failure is the round's business, not the program's
            fail(outcomes[id(member)], error)
    try:
        if training and fit:
            train_together(fit, lead.model, pool)
        elif fit and not _by_form(fit, lead, pool):
            yield from _apart(requests, numbered)
            return
    except Exception:  # whose fault it is shows when each is alone
        yield from _apart(requests, numbered)
        return
    for number, member in numbered:
        request, outcome = requests[number], outcomes[id(member)]
        if outcome.problem is None:
            method = getattr(request.algorithm, request.phase)
            try:
                complete(
                    outcome,
                    request.algorithm,
                    request.phase,
                    member.values,
                    member.client,
                    declared_sends(method),
                    request.model,
                )
            except Exception as error:
                fail(outcome, error)
        outcome.steps, outcome.examples = member.client.steps, member.client.examples
    each = (time.perf_counter() - started) / len(numbered)
    for number, member in numbered:
        outcomes[id(member)].seconds = each
        yield number, outcomes[id(member)]


def _apart(requests: Sequence[Request], numbered: Sequence[tuple[int, Member]]) -> Iterator[tuple[int, Outcome]]:
    for number, member in numbered:
        for outcome in _one_by_one(requests[number], [member.client.id]):
            yield number, outcome


def _one_by_one(request: Request, clients: Sequence[int] | None = None) -> Iterator[Outcome]:
    with torch.random.fork_rng(devices=[]):
        for number in request.clients if clients is None else clients:
            client = request.client(number)
            yield run_phase(request.algorithm, request.phase, request.model, request.broadcast, client, request.shared)


def _by_form(members: list[Member], lead: Request, pool: RowPool) -> bool:
    """Run a phase by its stacked form, and leave each client's reply in it; False if the form cannot."""
    found = form_of(lead.algorithm, lead.phase)
    assert found is not None
    form, which = found
    members = sorted(members, key=lambda member: -len(getattr(member.client, which)))
    stack = Stack(lead.model.spec, lead.model.layout, torch.stack([m.broadcast.parameters for m in members]))
    rows: list[Rows] = [getattr(member.client, which) for member in members]
    shared = {name: [m.shared[name] for m in members] for name in lead.shared}
    given = {name: torch.stack([torch.as_tensor(v) for v in values]) for name, values in shared.items()}
    replies = form([m.client for m in members], stack, _Reader(rows, pool), **given)
    if replies is None:
        return False
    for member, reply in zip(members, replies, strict=True):
        member.values = reply
    return True


class _Reader:
    """Reads the rows of neighbours in a stack in full passes, as `Client.sweep` does for one client."""

    def __init__(self, rows: Sequence[Rows], pool: RowPool) -> None:
        self._rows, self._pool = rows, pool

    def __call__(self) -> Iterator[tuple[slice, Batch]]:
        """Neighbours with as many rows, and the next rows of each."""
        first = 0
        while first < len(self._rows):
            count, last = len(self._rows[first]), first
            while last < len(self._rows) and len(self._rows[last]) == count:
                last += 1
            if count:
                for part in torch.arange(count).tensor_split(-(-count // self._rows[first].at_once)):
                    yield slice(first, last), self._read(first, last, part)
            first = last

    def _read(self, first: int, last: int, part: Tensor) -> Batch:
        neighbours = self._rows[first:last]
        if all(self._pool.holds(rows) for rows in neighbours):
            return self._pool.read(neighbours[0], [self._pool.numbers(rows)[part] for rows in neighbours])
        read = [rows.take(part) for rows in neighbours]
        return Batch(torch.stack([batch.x for batch in read]), torch.stack([batch.y for batch in read]))
