"""The Federation contract: the only way to reach clients.

    replies = fed.map(self.train, state.model, target=target)
    updates = replies.stack("update")            # one row a client, in client order

Replies that fail the checks never get here; a round that loses too many clients raises `QuorumMissed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from farfield.federation.phase import Named
from farfield.models import Layout, ModelState


class FederationError(RuntimeError):
    """The federation cannot go on."""


class QuorumMissed(FederationError):
    """Too few replies arrived for this round to count."""


class NobodyReplied(FederationError):
    """Nobody answered outside a round, where no quorum is asked for."""


@dataclass(frozen=True)
class Reply:
    """What one client sent back, with the envelope that goes with every reply."""

    client: int
    domain: str
    samples: int
    values: Named


@dataclass(frozen=True)
class Replies(Sequence[Reply]):
    """The replies that arrived and passed the checks, in client order whatever order they came in."""

    replies: tuple[Reply, ...]
    #: How many clients the federation has in all, as SCAFFOLD's server needs to know.
    registered: int = 0

    def __len__(self) -> int:
        return len(self.replies)

    def __iter__(self) -> Iterator[Reply]:
        return iter(self.replies)

    def __getitem__(self, index: Any) -> Any:
        return self.replies[index]

    @property
    def samples(self) -> Tensor:
        """Training examples of each client, in float64, ready to be weights."""
        return torch.tensor([float(r.samples) for r in self.replies], dtype=torch.float64)

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(r.client for r in self.replies)

    def of(self, clients: Collection[int]) -> Replies:
        """Only the replies of these clients: for a second exchange, when not everyone was in the first."""
        return replace(self, replies=tuple(r for r in self.replies if r.client in clients))

    def has(self, name: str) -> bool:
        return bool(self.replies) and all(name in r.values for r in self.replies)

    def stack(self, name: str) -> Tensor:
        """One row a client."""
        return torch.stack([torch.as_tensor(r.values[name]) for r in self.replies])

    def weights(self, weighting: Literal["samples", "uniform"]) -> Tensor:
        """Weights that sum to one: by sample count, or the same for all."""
        counts = self.samples if weighting == "samples" else torch.ones(len(self.replies), dtype=torch.float64)
        return counts / counts.sum()


@dataclass
class Traffic:
    """What a round cost: counted where it happens, by phase."""

    bytes_up: dict[str, int] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    local_steps: int = 0
    examples: int = 0
    client_seconds: float = 0.0
    #: Wall time that the server spent waiting for replies.
    waiting_seconds: float = 0.0

    def add(self, other: Traffic) -> None:
        for mine, theirs in ((self.bytes_up, other.bytes_up), (self.bytes_down, other.bytes_down)):
            for phase, count in theirs.items():
                mine[phase] = mine.get(phase, 0) + count
        self.local_steps += other.local_steps
        self.examples += other.examples
        self.client_seconds += other.client_seconds
        self.waiting_seconds += other.waiting_seconds


@dataclass(frozen=True)
class Event:
    """Something that a reader of the records should know: a dropped reply, a lost worker, a skipped round."""

    kind: str
    round: int
    message: str
    client: int | None = None
    phase: str | None = None
    #: A traceback, for whoever writes the method.
    detail: str | None = None


class Federation(Protocol):
    """How an algorithm reaches clients. Engines implement it; algorithms never see which one runs."""

    @property
    def clients(self) -> int:
        """How many clients are registered."""
        ...

    @property
    def layout(self) -> Layout:
        """The model's shape: where each parameter lies in the flat vector, and how many features and outputs."""
        ...

    def map(self, phase: Callable[..., Named], model: ModelState, **shared: Tensor | float | int) -> Replies:
        """Run `phase` on this round's cohort and return the replies that arrived."""
        ...

    def generator(self, purpose: str) -> torch.Generator:
        """The server's random numbers for this round: they depend on (seed, round, purpose) and on nothing else."""
        ...
