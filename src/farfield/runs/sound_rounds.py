"""A round counts only if its new state is sound; a client whose reply made it otherwise is found and left out.

Every reply is checked before a method sees it, and still a server half can make of finite replies what is none: a
square overflows, a matrix has no inverse. What is saved, evaluated and broadcast next has therefore passed a check of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from farfield.algorithms import FedAvg, State
from farfield.federation.engine import Engine
from farfield.federation.federation import Event, FederationError, QuorumMissed
from farfield.federation.reply_checks import LARGEST, largest_entry

#: A reply is out of all proportion if one of its values is so many times the median of the cohort's.
OUT_OF_PROPORTION = 100.0
#: With fewer replies nobody can say which of them is out of proportion.
FEWEST = 3
#: Rounds for which the state before such a reply is kept: what it does may show only later.
REMEMBERED = 5
LEFT_OUT, STEPPED_BACK = "left-out", "stepped-back"

Sizes = Mapping[tuple[str, str], Mapping[int, float]]


def unsound(state: State) -> str | None:
    """Return why a state must not count, in one phrase; None if it may: all its numbers are finite and not absurd."""
    named: dict[str, Tensor] = {
        "the model's parameters": state.model.parameters,
        "the model's buffers": state.model.buffers,
        **{f"the server optimizer's '{name}'": value for name, value in state.slots.items()},
        **{f"the server's '{name}'": value for name, value in state.extras.items()},
    }
    for name, value in named.items():
        if not value.is_floating_point():
            continue
        size = largest_entry(value)
        if not math.isfinite(size):
            return f"{name} are not finite" if name.endswith("s") else f"{name} is not finite"
        if size > LARGEST:
            return f"{name} would have an entry of size {size:.1e}, and {LARGEST:.0e} is the largest that can be"
    return None


class Suspect(NamedTuple):
    """The client whose reply is most out of proportion, and the value in which it is."""

    client: int
    phase: str
    name: str
    size: float
    times: float


def suspect(sizes: Sizes, known: Iterable[int] = ()) -> Suspect | None:
    """Return the client whose reply is most out of proportion, besides those already known; None if none is."""
    found: list[Suspect] = []
    for (phase, name), of_clients in sizes.items():
        others = {client: size for client, size in of_clients.items() if client not in set(known)}
        if len(others) < FEWEST:
            continue
        median = sorted(others.values())[(len(others) - 1) // 2]
        for client, size in others.items():
            times = size / median if median > 0 else math.inf if size > 0 else 0.0
            if times >= OUT_OF_PROPORTION:
                found.append(Suspect(client, phase, name, size, times))
    return max(found, key=lambda each: (each.times, each.size), default=None)


class _Doubtful(NamedTuple):
    """A round with a reply out of proportion that was accepted: who sent it, and what was before it."""

    number: int
    blamed: Suspect
    state: State
    #: What the engine holds of the clients' states; a site that holds its own cannot go back.
    clients: dict[int, dict[str, Tensor]]


@dataclass
class SoundRounds:
    """Makes rounds whose states are sound, and remembers who is left out of the run.

    `name_of` gives the name of a client for the records.
    """

    algorithm: FedAvg
    fed: Engine
    quorum: float = 0.5
    name_of: Callable[[int], str] = str
    left_out: set[int] = field(default_factory=set)
    _doubtful: _Doubtful | None = None

    def make(self, state: State, number: int, cohort: Sequence[int]) -> State:
        """Make a round. Raises QuorumMissed if too few clients are left for a sound one."""
        asked = [client for client in cohort if client not in self.left_out]
        needed = max(1, math.ceil(self.quorum * len(cohort) - 1e-9))
        clients = self.fed.states
        while True:
            if len(asked) < needed:
                raise QuorumMissed(
                    f"{len(asked)} of {len(cohort)} clients are not left out, and the quorum is {needed}"
                )
            self.fed.begin(number, asked)
            after, problem = self._attempt(state)
            if after is not None:
                self._remember(state, number, clients)
                return after
            blamed = suspect(self.fed.largest)
            if blamed is None:
                raise QuorumMissed(f"the round came to no sound state, and no reply stands out: {problem}")
            self._leave_out(blamed, number, f"with it {problem}")
            asked.remove(blamed.client)
            self.fed.forget()

    def _attempt(self, state: State) -> tuple[State | None, str]:
        """Return the next state, or None and the reason if it is not sound."""
        try:
            after = self.algorithm.round(self.fed, state)
        except (ArithmeticError, ValueError, RuntimeError) as error:
            fatal = isinstance(error, FederationError) and not isinstance(error, QuorumMissed)
            if fatal or suspect(self.fed.largest) is None:  # a mistake of the method is for its author to see
                raise
            failed = "the others cannot go on" if isinstance(error, QuorumMissed) else "the server cannot compute"
            return None, f"{failed} ({type(error).__name__})"
        problem = unsound(after)
        return (after, "") if problem is None else (None, problem)

    def _remember(self, state: State, number: int, clients: dict[int, dict[str, Tensor]]) -> None:
        """Keep the state before a round with a reply out of proportion, for as long as it may be needed."""
        if self._doubtful is not None and number - self._doubtful.number < REMEMBERED:
            return
        stood_out = suspect(self.fed.largest)
        self._doubtful = None if stood_out is None else _Doubtful(number, stood_out, state, clients)

    def step_back(self, number: int) -> State | None:
        """Return the state before a reply that was out of proportion, if there was one lately; None otherwise.

        For a round in which too few clients can work with the broadcast model: it is finite, and of no use.
        """
        if self._doubtful is None:
            return None
        since, self._doubtful = self._doubtful, None
        self._leave_out(since.blamed, number, "the model that came of it was of no use to the clients")
        message = f"the models since round {since.number} were of no use to the clients; the run takes the one before"
        self.fed.events.append(Event(STEPPED_BACK, number, message))
        self.fed.states = since.clients
        return since.state

    def _leave_out(self, blamed: Suspect, number: int, why: str) -> None:
        self.left_out.add(blamed.client)
        # Where all others sent zeros there is no telling how many times larger it was.
        times = f", {blamed.times:.0e} times the median of the cohort" if math.isfinite(blamed.times) else ""
        message = (
            f"'{self.name_of(blamed.client)}' is left out of the rest of the run: its '{blamed.name}' has an entry of "
            f"size {blamed.size:.1e}{times}, and {why}"
        )
        self.fed.events.append(Event(LEFT_OUT, number, message, client=blamed.client, phase=blamed.phase))
