"""Phases of one run or of several, served together where clients can be a stack, and one by one where not."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.federation.client import Batch, Client, Rows
from farfield.federation.engines.batched.own_stacks import TOO_LARGE, most_together, own_parts
from farfield.federation.engines.batched.planned_client import (
    Planned,
    PlannedClient,
    RowPool,
    StepReader,
    steps_together,
)
from farfield.federation.engines.batched.stacked_training import Member, prepare, settings_key, train_together
from farfield.federation.execution import Outcome, complete, fail, moved, run_phase
from farfield.federation.local_training import is_plain
from farfield.federation.phase import declared_sends, form_of, is_local_training
from farfield.models import FunctionalStack, Model, ModelState, Stack, why_not_functional, why_not_stacked
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.randomness import generators_kept

#: Clients that are asked, each with the number of the request that asks it.
Asked = Sequence[tuple[int, int]]


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
    #: Where the clients compute.
    device: torch.device = CPU
    #: Whether models that a stack with the bits of single ones does not exist for may be stacked by `torch.func`.
    functional: bool = False

    @property
    def rounds_by_size(self) -> bool:
        """Whether what a client computes in a stack depends, in its last bits, on how many are in it."""
        return why_not_stacked(self.model.spec) is not None


def why_alone(algorithm: Any, phase: str, model: Model, functional: bool = False) -> str | None:
    """Return why a phase is run client by client, in one phrase; None if its clients can be a stack.

    With `functional` a stack need not have the bits of single clients.
    """
    reason = why_not_stacked(model.spec)
    if reason is not None and functional:
        reason = why_not_functional(model)
    if reason is not None:
        return reason
    if is_local_training(getattr(algorithm, phase)):
        if not algorithm.stackable:
            return f"{algorithm.name} does not say that its hooks work on a stack of clients (stackable)"
        if algorithm.params.privacy == "record":
            return "privacy=record clips the gradient of each row"
        why: str | None = algorithm.why_not_stacked(model.spec)
        return why
    if model.spec.representation == "gaussian" and model.spec.test_samples:
        return "predictions are means over random samples (model.test_samples)"
    return None if form_of(algorithm, phase) else f"the phase '{phase}' of {algorithm.name} has no stacked form"


def serve(requests: Sequence[Request], pool: RowPool) -> list[list[Outcome]]:
    """Serve requests, together where they can be. A run's outcomes do not depend on the other requests."""
    outcomes: list[list[Outcome]] = [[] for _ in requests]
    stacks: dict[Hashable, list[tuple[int, int]]] = {}
    for number, request in enumerate(requests):
        why = why_alone(request.algorithm, request.phase, request.model, request.functional)
        if why is not None:
            outcomes[number] = list(_one_by_one(request))
            if request.functional:
                _tell(outcomes[number][0], request, why, pool)
            continue
        if request.rounds_by_size:
            outcomes[number] = [outcome for _, outcome in _by_itself(requests, number, pool)]
            continue
        key = _stack_key(request)
        stacks.setdefault(key, []).extend((number, client) for client in request.clients)
    for asked in stacks.values():
        lead = requests[asked[0][0]]
        with generators_kept(lead.device):
            for part in _parts(asked, len(lead.broadcast.parameters), pool):
                for number, outcome in _within_memory(requests, part, pool):
                    outcomes[number].append(outcome)
    return outcomes


def _by_itself(requests: Sequence[Request], number: int, pool: RowPool) -> Iterator[tuple[int, Outcome]]:
    """Serve a request by stacks of its own clients, split in a way that depends on nothing else."""
    request = requests[number]
    most = most_together(request.algorithm, request.phase, len(request.broadcast.parameters))
    with generators_kept(request.device):
        for part in own_parts(request.clients, most):
            asked, full = [(number, client) for client in part], False
            if len(part) == 1:
                yield from _apart(requests, asked, TOO_LARGE, pool if most == 1 else None)
                continue
            try:
                yield from _together(requests, _members(requests, asked, pool), pool)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                full = True
            if full:  # outside the except block: the error would keep the memory of the attempt
                if request.device.type == "cuda":
                    torch.cuda.empty_cache()
                why = f"the memory did not suffice for a stack of {len(part)}"
                yield from _apart(requests, asked, why, pool)


def _members(requests: Sequence[Request], asked: Asked, pool: RowPool) -> list[tuple[int, Member]]:
    """Make the clients of a stack, as they are before the phase, with their states where they compute."""
    given = {number: _on_device(requests[number]) for number in dict.fromkeys(number for number, _ in asked)}
    made = []
    for number, client in asked:
        planned = PlannedClient(**vars(requests[number].client(client)), pool=pool)
        if planned.device != CPU:
            planned.state = moved(planned.state, planned.device)
        made.append((number, Member(requests[number].algorithm, planned, *given[number])))
    return made


def _on_device(request: Request) -> tuple[ModelState, Mapping[str, Any]]:
    """Return what a request broadcasts and shares on the device of its clients, copied once for all of them."""
    if request.device == CPU:
        return request.broadcast, request.shared
    broadcast = ModelState(*(t.to(request.device) for t in (request.broadcast.parameters, request.broadcast.buffers)))
    return broadcast, moved(request.shared, request.device)


def _stack_key(request: Request) -> Hashable:
    """Clients with one key can be in one stack."""
    return request.device, _work_key(request)


def _work_key(request: Request) -> Hashable:
    """Clients with one key do the same work."""
    method, name = request.algorithm, request.phase
    shapes = (request.model.spec, tuple(sorted(request.shared)), method.params.class_weights)
    if not is_local_training(getattr(method, name)):
        found = form_of(method, name)
        assert found is not None
        sizes = tuple(torch.as_tensor(value).shape for _, value in sorted(request.shared.items()))
        return name, found[0].__func__, repr(method.params), shapes, sizes  # type: ignore[attr-defined]
    if is_plain(method.local_gradient) and is_plain(method.loss):
        return name, request.model.spec, method.params.class_weights
    return name, settings_key(method), shapes


def _parts(asked: Asked, parameters: int, pool: RowPool) -> Iterator[Asked]:
    """Stacks that fit into memory, by what is known of it when each is made."""
    start = 0
    while start < len(asked):
        end = start + max(1, pool.stack_numbers // max(1, parameters))
        yield asked[start:end]
        start = end


def _within_memory(requests: Sequence[Request], asked: Asked, pool: RowPool) -> Iterator[tuple[int, Outcome]]:
    """Run clients as a stack; if the memory does not suffice, as stacks of half the size, and so on.

    Clients are made anew for it, so nothing of the attempt is left. Later stacks are no larger than those that fitted.
    """
    try:
        yield from _together(requests, _members(requests, asked, pool), pool)
        return
    except Exception as error:
        if not out_of_memory(error):
            raise
    # Outside the except block: the error would keep the memory of the attempt.
    lead, half = requests[asked[0][0]], len(asked) // 2
    parameters = len(lead.broadcast.parameters)
    if lead.device.type == "cuda":
        torch.cuda.empty_cache()
    if not half:
        yield from _apart(requests, asked)
        return
    pool.stack_numbers = min(pool.stack_numbers, half * parameters)
    note = f"the memory did not suffice for a stack of {len(asked)} clients; they were run as stacks of {half} or fewer"
    told: set[int] = set()
    for part in _parts(asked, parameters, pool):
        for number, outcome in _within_memory(requests, part, pool):
            if number not in told:
                outcome.note = outcome.note or note
                told.add(number)
            yield number, outcome


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a GPU's or this machine's memory is full."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def _together(
    requests: Sequence[Request], numbered: Sequence[tuple[int, Member]], pool: RowPool
) -> Iterator[tuple[int, Outcome]]:
    """Run clients as a stack; if that fails, each alone, so that an error is its own. Raises if memory is full."""
    started = time.perf_counter()
    asked = [(number, member.client.id) for number, member in numbered]
    lead = requests[numbered[0][0]]
    lead.model.on(lead.device)
    outcomes = {id(m): Outcome(m.client.id, m.client.domain, m.client.samples) for _, m in numbered}
    fit: list[Member] = []
    training = is_local_training(getattr(lead.algorithm, lead.phase))
    for _, member in numbered:
        try:
            if training:
                prepare(member, lead.model)
            fit.append(member)
        except Exception as error:  # a client's failure is the round's business, not the program's
            if out_of_memory(error):
                raise
            fail(outcomes[id(member)], error)
    try:
        if training and fit:
            train_together(fit, lead.model, pool)
        elif fit and not _by_form(fit, lead, pool):
            why = f"the phase '{lead.phase}' has no stacked form with these settings"
            yield from _apart(requests, asked, why, pool if lead.rounds_by_size else None)
            return
    except Exception as error:  # whose fault it is shows when each is alone
        if out_of_memory(error):
            raise
        yield from _apart(requests, asked, f"their stack failed ({type(error).__name__}: {error})"[:200], pool)
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
                if out_of_memory(error):
                    raise
                fail(outcome, error)
        outcome.steps, outcome.examples = member.client.steps, member.client.examples
    each = (time.perf_counter() - started) / len(numbered)
    for number, member in numbered:
        outcomes[id(member)].seconds = each
        yield number, outcomes[id(member)]


def _apart(
    requests: Sequence[Request], asked: Asked, why: str = "", pool: RowPool | None = None
) -> Iterator[tuple[int, Outcome]]:
    """Run clients one by one. `why` is told once for a phase of a run."""
    for number, client in asked:
        for outcome in _one_by_one(requests[number], [client]):
            if pool is not None:
                _tell(outcome, requests[number], why, pool)
            yield number, outcome


def _tell(outcome: Outcome, request: Request, why: str, pool: RowPool) -> None:
    """Say in an outcome why clients are run one by one, once for a phase of a run."""
    phase = (id(request.algorithm), request.phase)
    if phase not in pool.told:
        pool.told.add(phase)
        result = "the bits of the local engine" if request.rounds_by_size else "the same result"
        outcome.note = f"the clients of this phase are run one by one, with {result}: {why}"


def _one_by_one(request: Request, clients: Sequence[int] | None = None) -> Iterator[Outcome]:
    with generators_kept(request.device):
        for number in request.clients if clients is None else clients:
            client = request.client(number)
            yield run_phase(request.algorithm, request.phase, request.model, request.broadcast, client, request.shared)


def _by_form(members: list[Member], lead: Request, pool: RowPool) -> bool:
    """Run a phase by its stacked form, and leave each client's reply in it; False if the form cannot."""
    found = form_of(lead.algorithm, lead.phase)
    assert found is not None
    form, which = found
    members = sorted(members, key=lambda member: -len(getattr(member.client, which)))
    vectors = torch.stack([m.broadcast.parameters for m in members])
    if lead.rounds_by_size:
        stack: Stack = FunctionalStack(lead.model, vectors)
    else:
        stack = Stack(lead.model.spec, lead.model.layout, vectors)
    rows: list[Rows] = [getattr(member.client, which) for member in members]
    shared = {name: [m.shared[name] for m in members] for name in lead.shared}
    given = {n: torch.stack([torch.as_tensor(v, device=lead.device) for v in of]) for n, of in shared.items()}
    read = _Reader(rows, pool, len(rows) if lead.rounds_by_size else 1)
    replies = form([m.client for m in members], stack, read, **given)
    if replies is None:
        return False
    for member, reply in zip(members, replies, strict=True):
        member.values = reply
    return True


class _Reader:
    """Reads the rows of neighbours in a stack in full passes, as `Client.sweep` does for one client.

    With `sharing`, so many clients share the memory that a single one would take for a pass.
    """

    def __init__(self, rows: Sequence[Rows], pool: RowPool, sharing: int = 1) -> None:
        self._rows, self._pool, self._sharing = rows, pool, sharing

    def __call__(self, rows: Sequence[Rows] | None = None) -> Iterator[tuple[slice, Batch]]:
        """Neighbours with as many rows, and the next rows of each."""
        rows, first = self._rows if rows is None else rows, 0
        while first < len(rows):
            count, last = len(rows[first]), first
            while last < len(rows) and len(rows[last]) == count:
                last += 1
            if count:
                at_once = max(1, rows[first].at_once // self._sharing)
                for part in torch.arange(count).tensor_split(-(-count // at_once)):
                    yield slice(first, last), self._read(rows[first:last], part)
            first = last

    def steps(self, drawn: Sequence[Iterable[Any]]) -> Iterator[tuple[int, slice, Batch]]:
        """The number of a step, neighbours whose batches of it have one length, and these batches."""
        planned: list[list[Planned]] = [list(batches) for batches in drawn]
        reader = StepReader(self._pool, self._rows[0])
        for step, first, last in steps_together(planned):
            batches = [each[step] for each in planned[first:last]]
            yield step, slice(first, last), reader.read((first, last), batches)

    def _read(self, neighbours: Sequence[Rows], part: Tensor) -> Batch:
        if all(self._pool.holds(rows) for rows in neighbours):
            return self._pool.read(neighbours[0], [self._pool.numbers(rows)[part] for rows in neighbours])
        read = [rows.take(part) for rows in neighbours]
        return Batch(torch.stack([batch.x for batch in read]), torch.stack([batch.y for batch in read]))
