"""What a node does with a message: find the phase by name, run it on the site's rows, send back what it declares.

The same code as in the local engine runs where the data is (`run_phase`). What the method keeps at the client between
rounds stays in `Keeping`, which a site also writes to disk; a round that the server gave up is forgotten here too.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from farfield.errors import UserError
from farfield.federation.client import Client, lasting
from farfield.federation.execution import Outcome, run_phase
from farfield.federation.flower.assignment import Assignment
from farfield.models import Model, ModelState, build_model
from farfield.models.threads import one_thread

Build = Callable[[str, Mapping[str, Any], int], Any]


class Refused(UserError):
    """A site does not do what a server asks of it."""


class Site(Protocol):
    """A client's own side: its rows, and what it allows to leave."""

    def client(self, assignment: Assignment, name: str, *, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        """The client with its rows; `Refused` for a name that is not here."""
        ...

    def allow(self, assignment: Assignment, phase: str, round: int) -> None:
        """Raise `Refused` if what the phase sends was not approved."""
        ...


@dataclass
class Keeping:
    """What a client keeps of a run: the state after the last round that counted, and that of the round under way.

    A site writes all of it to disk, because Flower starts a process for every message.
    """

    kept: dict[str, Tensor] = field(default_factory=dict)
    staged: dict[str, Tensor] | None = None
    round: int = 0
    attempt: str = ""
    #: What was staged before the last reply, and that reply's mark: the server may have had no use for it.
    before: dict[str, Tensor] | None = None
    mark: str = ""
    #: The round that `kept` is of.
    kept_round: int = 0

    def state(
        self, round: int, attempt: str, skipped: frozenset[int], accepted: str | None = None
    ) -> dict[str, Tensor]:
        """The state to go on from: what was staged counts if its round did and its reply was the last one accepted.

        Every message says which reply that was, so that one which came too late, or never, is forgotten here as well,
        however many messages are lost in between.
        """
        if accepted is not None and self.mark and self.mark != accepted:
            self.staged, self.before, self.mark = self.before, None, accepted
        if self.staged is not None and (attempt != self.attempt or self.round in skipped):
            if self.round < round and self.round not in skipped:
                self.kept, self.kept_round = lasting(self.staged), self.round
            self.staged = None
        if self.kept and round <= self.kept_round:
            raise Refused(
                f"the server has gone back to round {round}, and what this site keeps is of round {self.kept_round}; "
                "start the run anew"
            )
        current = self.kept if self.staged is None else self.staged
        return {name: value.clone() for name, value in current.items()}

    def stage(self, round: int, attempt: str, state: dict[str, Tensor], mark: str = "") -> None:
        self.before, self.mark = self.staged, mark
        self.staged, self.round, self.attempt = state, round, attempt


class Resident:
    """The algorithm and the model of a run, built once and kept between messages of a process."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._key: str | None = None
        self._made: tuple[Any, Model] | None = None

    def of(self, assignment: Assignment) -> tuple[Any, Model]:
        key = assignment.model_dump_json(exclude={"data", "run"})
        if self._made is None or key != self._key:
            algorithm = self._build(assignment.algorithm, assignment.settings, assignment.rounds)
            self._made, self._key = (algorithm, build_model(assignment.model, assignment.seed)), key
        return self._made


def answer(
    header: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]], site: Site, resident: Resident, keeping: Keeping
) -> Outcome:
    """Run the phase that a message asks for. Never raises for what a client or a server did wrong."""
    started = time.perf_counter()
    name = str(header.get("client", ""))
    try:
        assignment = Assignment.model_validate_json(str(header["assignment"]))
        phase, round, attempt = str(header["phase"]), int(header["round"]), str(header["attempt"])
        site.allow(assignment, phase, round)  # before anything is built of what the server says
        algorithm, model = resident.of(assignment)
        travelling = bool(header["travelling"])
        skipped = frozenset(int(number) for number in header["skipped"])
        accepted = str(header.get("accepted", ""))
        state = dict(groups["state"]) if travelling else keeping.state(round, attempt, skipped, accepted)
        client = site.client(assignment, name, round=round, phase=phase, state=state)
        with one_thread(), torch.random.fork_rng(devices=[]):
            broadcast = ModelState(**groups["model"])
            outcome = run_phase(algorithm, phase, model, broadcast, client, groups["shared"])
        if outcome.problem is None and not travelling:
            keeping.stage(round, attempt, outcome.state, str(header.get("mark", "")))
            outcome.state = {}
        return outcome
    except (UserError, KeyError, TypeError, ValueError) as error:
        spent = time.perf_counter() - started
        if isinstance(error, Refused):
            return Outcome(client=-1, domain="", problem=str(error), seconds=spent)
        problem = str(error) if isinstance(error, UserError) else f"the message cannot be read: {error!r}"
        return Outcome(client=-1, domain="", problem=problem, detail=traceback.format_exc(), seconds=spent)


def reply_header(header: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """What goes with a reply: what it answers, and what the phase cost."""
    same = {name: header[name] for name in ("run", "round", "attempt", "phase", "client") if name in header}
    return {
        **same,
        "samples": outcome.samples,
        "steps": outcome.steps,
        "examples": outcome.examples,
        "seconds": outcome.seconds,
        "problem": outcome.problem or "",
        "detail": outcome.detail,
    }
