"""What every engine does the same: who is asked, what is checked, counted, kept and recorded.

An engine says how a phase reaches clients (`_outcomes`) and what stays at them between rounds; the rest is here, so
that a round means the same in one process and across machines.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from farfield.federation.bounding import cut_to_bound
from farfield.federation.client_state import ClientStates
from farfield.federation.execution import Outcome
from farfield.federation.federation import (
    Event,
    FederationError,
    NobodyReplied,
    QuorumMissed,
    Replies,
    Reply,
    Sum,
    Traffic,
    Values,
)
from farfield.federation.observation import REPLY_DROPPED, RUN_AGAIN, Asking, EventList
from farfield.federation.outgoing_updates import restored
from farfield.federation.phase import Named, Sends, declared_sends
from farfield.federation.reply_checks import STATE_DTYPES, largest_entry, nbytes
from farfield.federation.reported_figures import ReportedFigures
from farfield.federation.secure_sums.quantise import MOST_CLIENTS
from farfield.federation.secure_sums.summing_step import SecureSum, added_up, summing_step
from farfield.models import Layout, ModelState
from farfield.reproducibility.randomness import generator

NO_REPLY = "no reply within the deadline of {:g} s"


class Engine(ABC):
    """A federation that a run can be made on: rounds begin, count or are discarded, and cost is counted.

    with SomeEngine(...) as fed:
        fed.begin(round=1, cohort=[0, 1, 2])
        state = algorithm.round(fed, state)
    """

    #: Whether clients draw the noise of private training anew each time, so that a repeated round is another release.
    secure_noise = False

    def __init__(self, *, seed: int, quorum: float = 0.5, deadline: float | None = None) -> None:
        if not 0 < quorum <= 1:
            raise ValueError(f"quorum is a share of the cohort, over 0 and at most 1, not {quorum}")
        if deadline is not None and deadline <= 0:
            raise ValueError(f"deadline is a number of seconds over 0, not {deadline}")
        self._seed, self._quorum, self._deadline = seed, quorum, deadline
        self._round = 0
        self._cohort: tuple[int, ...] = ()
        self._sends: dict[str, Sends] = {}
        #: The secure sum that the phase under way is for, if it is for one.
        self._summing: SecureSum | None = None
        #: How many replies the phase under way needs.
        self._needed = 1
        self._states = ClientStates()
        self.traffic = Traffic()
        self.events = EventList()
        #: The phase under way, for whoever watches from another thread; None between phases.
        self.asking: Asking | None = None
        #: Rounds that did not count.
        self.skipped: set[int] = set()
        #: By client the mark of its last reply that was used: a client that keeps its state itself must know which.
        self.accepted: dict[int, str] = {}
        #: By output of this round and by client the size of the largest entry: whose reply is out of all proportion.
        self.largest: dict[tuple[str, str], dict[int, float]] = {}
        #: What clients have said of their numbers of rows, to hold later replies against.
        self._reported = ReportedFigures()
        #: Called with the phase, how many clients have answered and how many were asked: a sign of life within a round.
        self.heard: Callable[[str, int, int], None] = lambda phase, done, asked: None
        #: Called with the round, the phase and the clients before these are asked: whatever they send is then counted.
        self.before_asking: Callable[[int, str, Sequence[int]], None] = lambda round, phase, clients: None
        #: Training rows of each client that has replied.
        self.told_rows: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What an engine says.

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many clients are registered."""

    @property
    def quorum(self) -> float:
        """The share of the asked clients that must reply."""
        return self._quorum

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The model's shape."""

    @property
    def removed(self) -> frozenset[int]:
        """The clients that take no further part in the run: they are not drawn, asked or waited for."""
        return frozenset()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _outcomes(
        self, phase: str, model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> Iterator[Outcome]:
        """Run a phase on these clients: an outcome for each, in any order."""

    def name_of(self, client: int) -> str:
        """Return a client's name, for a reader: its domain, its site, or its number."""
        return f"client {client}"

    def _keep(self, outcome: Outcome) -> None:
        """Hold what an accepted client keeps until the round counts."""
        self._states.stage(outcome.client, outcome.state)

    def rows_of(self, client: int) -> int | None:
        """Return how many rows a client declared when it joined; None where nobody has to declare any."""
        return None

    def _totals(self, accepted: Sequence[Outcome]) -> dict[str, Tensor]:
        """Return the sums of the integers that clients sent for a secure sum."""
        return added_up([outcome.values for outcome in accepted])

    # What all do.

    @property
    def states(self) -> dict[int, dict[str, Tensor]]:
        """Return the state of each client between rounds, for a checkpoint. Empty where clients keep it themselves."""
        return self._states.save()

    @states.setter
    def states(self, states: dict[int, dict[str, Tensor]]) -> None:
        self._states.load(states)

    @property
    def cohort(self) -> tuple[int, ...]:
        """Return the clients of this round."""
        return self._cohort

    def discard(self) -> None:
        """Do not count this round: forget what clients wanted to keep of it, as the server forgets it."""
        self.skipped.add(self._round)
        self.forget()

    def forget(self) -> None:
        """Forget what clients wanted to keep of this attempt at a round, which is made once more."""
        self._states.discard()

    def begin(self, round: int, cohort: Sequence[int]) -> None:
        """Say which round it is and who takes part in it. The round before counts, unless it was discarded."""
        self._states.commit()
        self.largest = {}
        self._round = round
        self._cohort = tuple(sorted(cohort))

    def _note_restart(self, phase: str, client: int, how: str) -> None:
        self.events.append(Event(RUN_AGAIN, self._round, how, client=client, phase=phase))

    def generator(self, purpose: str) -> torch.Generator:
        return generator(self._seed, self._round, "server", purpose)

    def map(
        self,
        phase: Callable[..., Named],
        model: ModelState,
        *,
        among: Collection[int] | None = None,
        **shared: Tensor | float | int,
    ) -> Replies:
        asked = self._cohort if among is None else tuple(client for client in self._cohort if client in among)
        # The product of two decimals can lie a hair above the whole number that it stands for.
        self._needed = needed = max(1, math.ceil(self._quorum * len(asked) - 1e-9))
        replies, problems = self._run(phase, model, shared, asked)
        if len(replies) < needed:
            message = f"{len(replies)} of {len(asked)} clients replied, and the quorum is {needed}"
            raise QuorumMissed(f"{message} (phase '{phase.__name__}', first problem: {problems[0]})")
        return replies

    def map_over(self, clients: Sequence[int], phase: Callable[..., Named], model: ModelState) -> Replies:
        """Run a phase outside the round's cohort, on the clients named: how validation is measured."""
        self._needed = 1
        try:
            replies, problems = self._run(phase, model, {}, sorted(clients))
        except QuorumMissed as problem:  # too few for a secure sum
            raise NobodyReplied(str(problem)) from problem
        if not replies:
            raise NobodyReplied(f"no client replied in phase '{phase.__name__}': {problems[0]}")
        return replies

    def _run(
        self, phase: Callable[..., Named], model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> tuple[Replies, list[str]]:
        name = phase.__name__
        self._sends, self._summing = declared_sends(phase), summing_step(phase)
        if not clients:
            raise FederationError(f"there is no client to run phase '{name}' on; begin the round with a cohort")
        for key, value in shared.items():
            if not isinstance(value, Tensor | int | float):
                raise FederationError(f"'{key}' is a {type(value).__name__}; only tensors and numbers can be shared")
            if isinstance(value, Tensor) and value.dtype not in STATE_DTYPES:
                raise FederationError(f"the shared tensor '{key}' has dtype {value.dtype}, which cannot be sent")
        started = time.perf_counter()
        accepted: list[Outcome] = []
        problems: list[str] = []
        cost = Traffic(bytes_down={name: (model.nbytes + nbytes(shared)) * len(clients)}, bytes_up={name: 0})
        self.asking = Asking.begin(name, self._round, clients)
        self.before_asking(self._round, name, clients)
        self.heard(name, 0, len(clients))
        for done, outcome in enumerate(self._outcomes(name, model, shared, clients), 1):
            self.asking = self.asking.heard(outcome.client)
            self.heard(name, done, len(clients))
            declared = self.rows_of(outcome.client)
            self._reported.check(phase, outcome, declared, self._round, hidden=self._summing is not None)
            if outcome.samples:
                self.told_rows[outcome.client] = outcome.samples
            cost.local_steps += outcome.steps
            cost.examples += outcome.examples
            cost.client_seconds += outcome.seconds
            cost.bytes_up[name] += nbytes(outcome.values)
            if outcome.note:
                self.events.append(Event("note", self._round, outcome.note, client=outcome.client, phase=name))
            late = self._deadline is not None and outcome.seconds > self._deadline
            if outcome.problem is None and late:
                outcome.problem = NO_REPLY.format(self._deadline)
            if outcome.problem is None:
                outcome.values = restored(phase, outcome.values)
                accepted.append(outcome)
                self._keep(outcome)
            else:
                problems.append(f"client {outcome.client} ({outcome.domain}): {outcome.problem}")
                self.events.append(
                    Event(
                        REPLY_DROPPED,
                        self._round,
                        outcome.problem,
                        client=outcome.client,
                        phase=name,
                        detail=outcome.detail or None,
                    )
                )
        self.asking = None
        cost.waiting_seconds = time.perf_counter() - started
        self.traffic.add(cost)
        accepted.sort(key=lambda outcome: outcome.client)
        if self._summing is not None:
            return self._summed_replies(self._summing, name, accepted, problems), problems
        self._bound(phase, accepted)
        self._measure(name, accepted)
        return self._replies(accepted), problems

    def _measure(self, phase: str, accepted: Sequence[Outcome]) -> None:
        """Note how large the replies are, for whoever asks which one has spoilt a round."""
        for outcome in accepted:
            for name, value in outcome.values.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    self.largest.setdefault((phase, name), {})[outcome.client] = largest_entry(value)

    def _bound(self, phase: Callable[..., Named], accepted: Sequence[Outcome]) -> None:
        """Cut what is longer than the method's bound allows, and say whose it was."""
        bound = getattr(getattr(phase, "__self__", None), "bound", None)
        if bound is None:
            return
        for cut in cut_to_bound(accepted, self._sends, bound):
            self.events.append(Event("update-bounded", self._round, str(cut), client=cut.client, phase=phase.__name__))

    def _summed_replies(
        self, summing: SecureSum, phase: str, accepted: Sequence[Outcome], problems: Sequence[str]
    ) -> Replies:
        """Return the secure sums over the replies, whose single values the server half never has."""
        # Before the sum: of a round that will be skipped, and made again with other clients, the server has none.
        least = max(summing.least, self._needed)
        if not least <= len(accepted) <= MOST_CLIENTS:
            first = f", first problem: {problems[0]}" if problems else ""
            raise QuorumMissed(
                f"{len(accepted)} clients replied, and a secure sum is over {least} to {MOST_CLIENTS} "
                f"(phase '{phase}'{first})"
            )
        sums = summing.sums(self._totals(accepted))
        hidden = Values(dict.fromkeys(self._sends, 0), self._sends)
        replies = tuple(Reply(o.client, o.domain, o.samples, hidden, steps=o.steps) for o in accepted)
        return Replies(replies, registered=self.clients, sums=sums)

    def _replies(self, accepted: Sequence[Outcome]) -> Replies:
        """Return the replies as the server half may see them: single values, or sums where only sums are declared."""
        only_in_sum = [name for name, sends in self._sends.items() if sends.server_sees == "sum"]
        if only_in_sum and len(accepted) == 1 < len(self._cohort):
            message = f"one client is left, so the sum of '{only_in_sum[0]}' is that client's value"
            self.events.append(Event("sum-of-one", self._round, message, client=accepted[0].client))
        replies = tuple(
            Reply(o.client, o.domain, o.samples, Values(o.values, only_in_sum), steps=o.steps) for o in accepted
        )
        sums = {
            name: Sum.of([outcome.values[name] for outcome in accepted])
            for name in only_in_sum
            if accepted and all(name in outcome.values for outcome in accepted)
        }
        return Replies(replies, registered=self.clients, sums=sums)
