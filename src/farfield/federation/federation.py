"""The Federation contract: the only way to reach clients.

    replies = fed.map(self.train, state.model, target=target)
    updates = replies.stack("update")            # one row per client, in client order
    change = replies.sum("control_change")       # all that there is of what is declared with server_sees="sum"

Replies that fail the checks never get here; a round that loses too many clients raises `QuorumMissed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from farfield.federation.phase import Named
from farfield.math.averaging import ordered_sum
from farfield.models import Layout, ModelState


class FederationError(RuntimeError):
    """The federation cannot go on."""


class QuorumMissed(FederationError):
    """Too few replies arrived for this round to count."""


class NobodyReplied(FederationError):
    """Nobody answered outside a round, where no quorum is asked for."""


class OnlyInSum(FederationError):
    """A look at one client's value of what the server may see only in sum."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"'{name}' is declared with server_sees='sum', so it is seen only as replies.sum('{name}') over all "
            "replies; declare 'each' to see single values, or ask fewer clients with fed.map(…, among=clients)"
        )


class Values(dict[str, Any]):
    """The values of a reply that the server may see one by one. Reading one of the others is an error."""

    def __init__(self, values: Named, only_in_sum: Collection[str] = ()) -> None:
        super().__init__({name: value for name, value in values.items() if name not in only_in_sum})
        self._only_in_sum = frozenset(values) & frozenset(only_in_sum)

    def __missing__(self, name: str) -> Any:
        if name in self._only_in_sum:
            raise OnlyInSum(name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self or name in self._only_in_sum else default


@dataclass(frozen=True)
class Sum:
    """The sum over all replies of values that cannot be read one by one: all that a server has of them."""

    #: In float64 and client order.
    total: Tensor
    #: In the dtype of the values, by torch's own order.
    in_own_dtype: Tensor

    @classmethod
    def of(cls, values: Sequence[Tensor | float | int]) -> Sum:
        rows = torch.stack([torch.as_tensor(value) for value in values])
        total = ordered_sum(rows.reshape(len(rows), -1), torch.ones(len(rows)))
        return cls(total.view(rows.shape[1:]), rows.sum(dim=0))


@dataclass(frozen=True)
class Reply:
    """What one client sent back, with the envelope that goes with every reply."""

    client: int
    domain: str
    samples: int
    values: Mapping[str, Any]
    #: Local steps that the client made in this phase.
    steps: int = 0


@dataclass(frozen=True)
class Replies(Sequence[Reply]):
    """The replies that arrived and passed the checks, in client order whatever order they came in."""

    replies: tuple[Reply, ...]
    #: How many clients the federation has in all, as SCAFFOLD's server needs to know.
    registered: int = 0
    #: What is declared as needed only in sum.
    sums: Mapping[str, Sum] = field(default_factory=dict)

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
        """Only the replies of these clients, without the sums over all.

        For sums over fewer clients, ask these alone: `fed.map(phase, model, among=clients)`.
        """
        return replace(self, replies=tuple(r for r in self.replies if r.client in clients), sums={})

    def has(self, name: str) -> bool:
        """Whether every reply has this value, seen one by one or in sum."""
        return name in self.sums or self.shows(name)

    def shows(self, name: str) -> bool:
        """Whether every reply has this value and the server sees each of them."""
        return bool(self.replies) and all(name in r.values for r in self.replies)

    def stack(self, name: str) -> Tensor:
        """One row per client. Raises OnlyInSum for what is declared as needed only in sum."""
        return torch.stack([torch.as_tensor(r.values[name]) for r in self.replies])

    def sum(self, name: str, own_dtype: bool = False) -> Tensor:
        """The sum over the clients, in float64 and client order, or in the values' own dtype."""
        if name not in self.sums:
            silent = [r.client for r in self.replies if name not in r.values and not isinstance(r.values, Values)]
            if silent:
                raise FederationError(f"client {silent[0]} sent no '{name}', so there is no sum of it")
        of = self.sums[name] if name in self.sums else Sum.of([r.values[name] for r in self.replies])
        return of.in_own_dtype if own_dtype else of.total

    def mean(self, name: str) -> Tensor:
        """The weighted mean of a value that is seen only in sum, in float64: by its weights, or the same for all."""
        weight = f"{name}.weight"
        return self.sum(name) / (self.sum(weight) if weight in self.sums else len(self.replies))

    @property
    def steps(self) -> Tensor:
        """Local steps of each client in this phase, in float64."""
        return torch.tensor([float(r.steps) for r in self.replies], dtype=torch.float64)

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

    def map(
        self,
        phase: Callable[..., Named],
        model: ModelState,
        *,
        among: Collection[int] | None = None,
        **shared: Tensor | float | int,
    ) -> Replies:
        """Run `phase` on this round's cohort, or on those of it that are `among` these, and return the replies."""
        ...

    def generator(self, purpose: str) -> torch.Generator:
        """The server's random numbers for this round: they depend on (seed, round, purpose) and on nothing else."""
        ...
