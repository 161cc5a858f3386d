"""The named tensors that a method keeps at a client, and which of them count.

What a phase leaves behind is staged until its round counts. A round that counts commits it, a round that is given up
discards it, and the next phase of the same round goes on from it. Three classes share these rules:

- `ClientState`: the state of one client;
- `ClientStates`: the states of many clients, where the engine holds them (one machine, or a simulation);
- `SiteState`: the state of a client that holds it itself and learns from the server's messages what counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from farfield.federation.refusal import Refused

Tensors = dict[str, Tensor]
#: A tensor under a name with this prefix is for a later phase of the same round, and is forgotten with the round.
ROUND_ONLY = "round/"


def lasting(state: Mapping[str, Tensor]) -> Tensors:
    """Return what is left of a client's state when the round is over."""
    return {name: value for name, value in state.items() if not name.startswith(ROUND_ONLY)}


@dataclass
class ClientState:
    """The state of one client: `kept` after the last round that counted, `staged` by the round under way."""

    kept: Tensors = field(default_factory=dict)
    #: None if the client has replied to no phase of the round.
    staged: Tensors | None = None

    @property
    def current(self) -> Tensors:
        """The state that the client's next phase starts from."""
        return self.kept if self.staged is None else self.staged

    def copy(self) -> Tensors:
        """Return a copy of the current state: a phase that fails half-way must not leave half a state behind."""
        return {name: value.clone() for name, value in self.current.items()}

    def commit(self) -> None:
        """Keep what is staged, because its round counts."""
        if self.staged is not None:
            self.kept, self.staged = lasting(self.staged), None

    def discard(self) -> None:
        """Forget what is staged, because its round does not count."""
        self.staged = None


class ClientStates:
    """The states of many clients by their numbers. Only clients that have taken part have one."""

    def __init__(self) -> None:
        self._clients: dict[int, ClientState] = {}

    def of(self, client: int) -> ClientState:
        """Return the state of a client, an empty one if the client has none yet."""
        return self._clients.get(client) or ClientState()

    def stage(self, client: int, state: Tensors) -> None:
        """Hold what a phase left behind at a client until the round counts."""
        self._clients.setdefault(client, ClientState()).staged = state

    def commit(self) -> None:
        """Keep what is staged of all clients."""
        for state in self._clients.values():
            state.commit()

    def discard(self) -> None:
        """Forget what is staged of all clients."""
        for state in self._clients.values():
            state.discard()

    def save(self) -> dict[int, Tensors]:
        """Return what each client keeps once the round under way counts, for a checkpoint."""
        states = {number: lasting(state.current) for number, state in self._clients.items()}
        return {number: state for number, state in states.items() if state}

    def load(self, states: Mapping[int, Tensors]) -> None:
        """Replace all states by those of a checkpoint."""
        self._clients = {number: ClientState(kept=dict(state)) for number, state in states.items()}


@dataclass
class SiteState(ClientState):
    """The state of a client that holds it itself, as a site does on its own disk.

    The server says with every message which round and which attempt at it the message belongs to, which rounds were
    skipped, and which reply of this client it accepted last. From that the client finds out by itself what counted,
    however many messages were lost in between.
    """

    #: The round and the attempt that `staged` belongs to.
    round: int = 0
    attempt: str = ""
    #: What was staged before the last reply, and the mark of that reply: the server may not have accepted it.
    before: Tensors | None = None
    mark: str = ""
    #: The round that `kept` is of.
    kept_round: int = 0

    def start_phase(self, round: int, attempt: str, skipped: frozenset[int], accepted: str) -> Tensors:
        """Commit or discard what is staged, and return a copy of the state that the phase starts from.

        What is staged counts if its round counted and the reply that went with it was accepted. Raises `Refused` if
        the server has gone back behind what is kept.
        """
        if self.mark and self.mark != accepted:
            self.staged, self.before, self.mark = self.before, None, accepted
        if self.staged is not None and (attempt != self.attempt or self.round in skipped):
            if self.round < round and self.round not in skipped:
                self.commit()
                self.kept_round = self.round
            else:
                self.discard()
        if self.kept and round <= self.kept_round:
            raise Refused("gone-back", round=round, kept=self.kept_round)
        return self.copy()

    def stage(self, round: int, attempt: str, state: Tensors, mark: str) -> None:
        """Hold what a phase left behind until the server has accepted the reply with this mark and the round counts."""
        self.before, self.mark = self.staged, mark
        self.staged, self.round, self.attempt = state, round, attempt
