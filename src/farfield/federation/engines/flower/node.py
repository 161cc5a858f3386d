"""Run the phase that a message asks for on a client's rows.

A message names the phase; the code is the node's own, the same as in the local engine (`run_phase`). What the method
keeps at the client between rounds is a `SiteState`, unless it travels with the messages.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from farfield.errors import UserError
from farfield.federation.client import Client
from farfield.federation.client_state import SiteState
from farfield.federation.engines.flower.masked_sums import NodeSums
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.execution import Outcome, run_phase
from farfield.federation.phase import declared_sends
from farfield.federation.refusal import Refused
from farfield.federation.secure_sums.summing_step import SecureSum, summing_step
from farfield.models import Model, ModelState, build_model
from farfield.reproducibility.devices import computing_on
from farfield.reproducibility.randomness import generators_kept
from farfield.reproducibility.threads import one_thread

Build = Callable[[str, Mapping[str, Any], int], Any]
#: Opens what a node remembers of the secure sums of a run, for the client of that name.
OpenSums = Callable[[Assignment, str, SecureSum], NodeSums]


class Site(Protocol):
    """A client's own side: its rows, and what it allows to leave."""

    def client(self, assignment: Assignment, name: str, *, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        """Return the client with its rows. Raises `Refused` for a name that is not here."""
        ...

    def allow(self, assignment: Assignment, phase: str, round: int) -> None:
        """Raise `Refused` if what the phase sends was not approved."""
        ...


@dataclass(frozen=True)
class Question:
    """What a message asks of a client, with everything that the answer depends on."""

    assignment: Assignment
    phase: str
    round: int
    algorithm: Any
    model: Model
    broadcast: ModelState
    shared: Mapping[str, Any]
    client: Client


class Guard:
    """What a node checks before it answers a question and before the answer leaves. Here: nothing, for a simulation."""

    #: Whether the client's state may come and go with the messages.
    state_travels = True

    def before(self, question: Question) -> None:
        """Raise `Refused` if the question must not be answered."""

    def after(self, question: Question, outcome: Outcome) -> None:
        """Raise `Refused` if the answer must not leave."""


class MethodCache:
    """The algorithm and the model of the last run, built once and used for all messages of that run."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._key: str | None = None
        self._built: tuple[Any, Model] | None = None

    def get(self, assignment: Assignment) -> tuple[Any, Model]:
        """Return the algorithm and the model of a run, built from this process's own code."""
        key = assignment.model_dump_json(exclude={"data", "run"})
        if self._built is None or key != self._key:
            algorithm = self._build(assignment.algorithm, assignment.settings, assignment.rounds)
            self._built, self._key = (algorithm, build_model(assignment.model, assignment.seed)), key
        return self._built


def run_requested_phase(
    header: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
    site: Site,
    methods: MethodCache,
    held: SiteState,
    open_sums: OpenSums | None = None,
    guard: Guard | None = None,
) -> Outcome:
    """Run the phase that a message asks for, and stage what it leaves behind in `held`, unless the state travels.

    With `open_sums`, a phase that is for a secure sum is answered by the exchanges of one, and never otherwise.
    Never raises for what a client or a server did wrong: the outcome says it.
    """
    guard = guard or Guard()
    started = time.perf_counter()
    name = str(header.get("client", ""))
    try:
        assignment = Assignment.model_validate_json(str(header["assignment"]))
        phase, round, attempt = str(header["phase"]), int(header["round"]), str(header["attempt"])
        travelling = bool(header["travelling"])
        if header.get("run") != assignment.run:  # the state is held by one name, and all else by the other
            raise Refused("run-other")
        if (travelling or groups.get("state")) and not guard.state_travels:
            raise Refused("travelling")
        site.allow(assignment, phase, round)  # before anything that the server names is built
        algorithm, model = methods.get(assignment)
        sums = None
        summing = summing_step(getattr(algorithm, phase, None))
        if summing is not None and open_sums is not None:
            sums = open_sums(assignment, name, summing)
            answer = sums.before_phase(header, groups)
            if answer is not None:
                return Outcome(client=-1, domain="", values=answer, seconds=time.perf_counter() - started)
        skipped = frozenset(int(number) for number in header["skipped"])
        accepted = str(header.get("accepted", ""))
        state = dict(groups["state"]) if travelling else held.start_phase(round, attempt, skipped, accepted)
        client = site.client(assignment, name, round=round, phase=phase, state=state)
        with one_thread(), computing_on(client.device), generators_kept(client.device):
            broadcast = ModelState(**groups["model"])
            question = Question(assignment, phase, round, algorithm, model, broadcast, groups["shared"], client)
            guard.before(question)
            outcome = run_phase(algorithm, phase, model, broadcast, client, groups["shared"])
        if outcome.problem is None:
            guard.after(question, outcome)
        if outcome.problem is None and sums is not None:
            sends = declared_sends(getattr(algorithm, phase))
            outcome.values = sums.masked(header, outcome.values, sends, model.layout)
        if outcome.problem is None and not travelling:
            held.stage(round, attempt, outcome.state, str(header.get("mark", "")))
            outcome.state = {}
        return outcome
    except (UserError, KeyError, TypeError, ValueError) as error:
        spent = time.perf_counter() - started
        if isinstance(error, Refused):
            return Outcome(client=-1, domain="", problem=error.wire, seconds=spent)
        problem = str(error) if isinstance(error, UserError) else f"the message cannot be read: {error!r}"
        return Outcome(client=-1, domain="", problem=problem, detail=traceback.format_exc(), seconds=spent)
