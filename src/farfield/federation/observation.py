"""What can be seen of an engine while a round goes on: its events as they happen, and whose replies are awaited."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from farfield.federation.federation import Event

#: The kind of an event about a client whose reply did not count.
REPLY_DROPPED = "reply-dropped"
#: The kind of an event about work that was lost with its process and was done again, to the same bits.
RUN_AGAIN = "run-again"


class EventList(list[Event]):
    """Events that wait to be recorded. `on_event` is called with each of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.on_event: Callable[[Event], None] = lambda event: None

    def append(self, event: Event) -> None:
        super().append(event)
        self.on_event(event)


@dataclass(frozen=True)
class Asking:
    """A phase under way. It is replaced and never changed, so another thread can look at it."""

    phase: str
    round: int
    asked: tuple[int, ...]
    answered: frozenset[int] = frozenset()
    #: When the phase began, by the monotonic clock.
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, phase: str, round: int, clients: Sequence[int]) -> Asking:
        return cls(phase, round, tuple(clients))

    def heard(self, client: int) -> Asking:
        """Return the same phase after one more client has answered, or is given up."""
        return replace(self, answered=self.answered | {client})

    @property
    def awaited(self) -> tuple[int, ...]:
        return tuple(client for client in self.asked if client not in self.answered)
