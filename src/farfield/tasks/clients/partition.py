"""Partitions: how the rows of the source domains are dealt out to clients.

    partition = Partition.parse("dirichlet:0.3")
    clients = make_clients(task.domains[1:], partition=partition, clients=50, seed=0, kind=task.kind)
    clients[7].train         # ((domain name, row numbers), ...), made when asked for

Validation rows are set aside first, domain by domain. Which rows these are depends on the seed and the domain alone,
not on the partition, the number of clients or the other domains, so that settings are compared on the same rows.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, Literal, get_args, overload

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from farfield.math.domain_split import split_domains
from farfield.reproducibility.randomness import generator
from farfield.tasks.clients.row_shares import RowsByClient, check_fraction, deal_by_class, deal_evenly, deal_in_order
from farfield.tasks.clients.validation import OFFICIAL, split_domain
from farfield.tasks.task import Domain, TaskKind

PartitionKind = Literal["domain", "split", "split-published", "dirichlet", "sub-environments", "iid", "pooled"]
#: Rows of one client by domain: (domain name, int64 row numbers, ascending).
Segments = tuple[tuple[str, Tensor], ...]
#: The domain of a client whose rows come from several.
MIXED = "mixed"


class Partition(BaseModel):
    """Which rule deals out the rows.

    `domain`: one client a domain. `split`: more clients than domains, one domain each (FedIIR, Algorithm 2), sizes
    within a domain differing by at most one. `split-published`: the same with the sizes of FedIIR's published code.
    `dirichlet`: as `split`, with class shares drawn from a Dirichlet distribution (FedCiR). `sub-environments`: fewer
    clients than domains, several neighbouring domains each (FedILC). `iid`: rows of all domains shuffled over the
    clients. `pooled`: one client with everything, the centralized reference.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: PartitionKind = "domain"
    beta: float | None = Field(None, description="for 'dirichlet': small means few classes a client, large means all")

    @classmethod
    def parse(cls, text: str) -> Partition:
        """From the command line's form: "domain", "split", "dirichlet:0.3", "sub-environments", "iid" or "pooled"."""
        try:
            return cls.model_validate(text)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        kind, colon, beta = value.strip().partition(":")
        kinds = get_args(PartitionKind)
        if kind not in kinds:
            near = difflib.get_close_matches(kind, kinds, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the partitions are {', '.join(kinds)}"
            raise ValueError(f"unknown partition '{kind}'; {hint}")
        if not colon:
            return {"kind": kind}
        try:
            return {"kind": kind, "beta": float(beta)}
        except ValueError:
            raise ValueError(
                f"partition '{value}' has '{beta}' where a number belongs, as in 'dirichlet:0.3'"
            ) from None

    @model_validator(mode="after")
    def _beta_fits_kind(self) -> Partition:
        if self.kind == "dirichlet":
            if self.beta is None:
                raise ValueError("partition 'dirichlet' needs its parameter beta, as in 'dirichlet:0.3'")
            if not (isfinite(self.beta) and self.beta > 0):
                raise ValueError(f"partition 'dirichlet' needs a positive beta, not {self.beta}")
        elif self.beta is not None:
            raise ValueError(f"partition '{self.kind}' takes no value, but got {self.beta}; only 'dirichlet' has one")
        return self

    def __str__(self) -> str:
        return self.kind if self.beta is None else f"{self.kind}:{self.beta}"


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's rows, as row numbers into the domains. There is always a training row; validation may be empty."""

    client: int
    name: str
    #: The domain that all rows come from, or "mixed".
    domain: str
    train: Segments
    validation: Segments

    @property
    def train_size(self) -> int:
        return sum(len(rows) for _, rows in self.train)

    @property
    def validation_size(self) -> int:
        return sum(len(rows) for _, rows in self.validation)


class Clients(Sequence[Shard]):
    """All clients of a partition: one row array and one offset array a split. Shards are made when asked for."""

    def __init__(
        self,
        partition: Partition,
        domains: Sequence[Domain],
        clients_per_domain: Sequence[int] | None,
        train: RowsByClient,
        validation: RowsByClient,
    ) -> None:
        self.partition = partition
        self.domain_names = tuple(domain.name for domain in domains)
        self._domain_starts = _starts([len(domain) for domain in domains])
        #: None where a client's rows may come from several domains.
        self.clients_per_domain = None if clients_per_domain is None else list(clients_per_domain)
        self._client_starts = None if clients_per_domain is None else _starts(clients_per_domain)
        self._train = train
        self._validation = validation

    def __len__(self) -> int:
        return len(self._train.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> list[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | list[Shard]:
        if isinstance(index, slice):
            return [self._shard(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no client {index} among {len(self)}")
        return self._shard(index % len(self))

    def __iter__(self) -> Iterator[Shard]:
        return (self._shard(i) for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} clients, partition {self.partition}, domains {', '.join(self.domain_names)}>"

    def domain_of(self, client: int) -> str:
        """The domain that all of a client's rows come from, or "mixed"."""
        if self._client_starts is not None:
            return self.domain_names[bisect_right(self._client_starts, client) - 1]
        return self._shard(client).domain

    @property
    def train_sizes(self) -> Tensor:
        """Training rows of every client, int64, without making any shard."""
        return self._train.offsets.diff()

    @property
    def validation_sizes(self) -> Tensor:
        """Validation rows of every client, int64, without making any shard."""
        return self._validation.offsets.diff()

    @property
    def dealt(self) -> tuple[RowsByClient, RowsByClient]:
        """Training and validation rows of all clients: what clients can be made of again."""
        return self._train, self._validation

    @property
    def nbytes(self) -> int:
        """Bytes of the row and offset arrays, all that grows with rows or clients."""
        return sum(t.nbytes for dealt in (self._train, self._validation) for t in (dealt.rows, dealt.offsets))

    def _shard(self, client: int) -> Shard:
        train = self._segments(self._train.of(client))
        validation = self._segments(self._validation.of(client))
        present = {name for name, _ in (*train, *validation)}
        # Where rows are dealt out over all domains, holding one domain's only is chance and says nothing.
        several = self._client_starts is None and len(self.domain_names) > 1
        domain = MIXED if several else present.pop()
        return Shard(client, self._name(client), domain, train, validation)

    def _name(self, client: int) -> str:
        if self.partition.kind == "pooled":
            return "pooled"
        if self.partition.kind == "sub-environments":
            # By what it holds, so that a client's randomness follows its data and not its number.
            return "+".join(name for name, _ in self._segments(self._train.of(client)))
        if self._client_starts is None:
            return f"client-{client}"
        domain = bisect_right(self._client_starts, client) - 1
        if self.partition.kind == "domain":
            return self.domain_names[domain]
        return f"{self.domain_names[domain]}-{client - self._client_starts[domain]}"

    def _segments(self, rows: Tensor) -> Segments:
        if len(rows) == 0:
            return ()
        first = bisect_right(self._domain_starts, int(rows[0])) - 1
        last = bisect_right(self._domain_starts, int(rows[-1])) - 1
        if first == last:
            return ((self.domain_names[first], rows - self._domain_starts[first]),)
        ends = torch.searchsorted(rows, torch.tensor(self._domain_starts[first + 1 : last + 1])).tolist()
        parts = torch.tensor_split(rows, ends)
        return tuple(
            (self.domain_names[domain], part - self._domain_starts[domain])
            for domain, part in enumerate(parts, start=first)
            if len(part)
        )


def make_clients(
    domains: Sequence[Domain],
    *,
    partition: Partition,
    clients: int | None = None,
    validation: float | Literal["official"] = 0.1,
    seed: int,
    kind: TaskKind,
) -> Clients:
    """Deal the rows of the source domains out to clients.

    `clients` may be left out: one for `pooled`, as many as domains otherwise. Every client gets a training row. The
    validation rows of a domain are shared among its clients, so with many clients some have none. Clients are
    numbered domain by domain.
    """
    if validation != OFFICIAL:
        check_fraction(validation)
    if not domains:
        raise ValueError("there are no source domains to make clients of; hold fewer domains out")
    if kind == "regression" and partition.kind == "dirichlet":
        raise ValueError("partition 'dirichlet' skews class labels, which a regression task lacks; use 'split'")

    starts = _starts([len(domain) for domain in domains])
    train, held = [], []
    for domain in domains:
        rows = split_domain(domain, validation, seed, kind)
        train.append(rows[0])
        held.append(rows[1])
    counts = _clients_per_domain(partition, clients, [len(rows) for rows in train])

    if partition.kind == "sub-environments":
        number = clients if clients is not None else len(domains)
        groups = [domain * number // len(domains) for domain in range(len(domains))]
        train_owner, held_owner = (
            torch.repeat_interleave(torch.tensor(groups), torch.tensor([len(rows) for rows in part]))
            for part in (train, held)
        )
    elif counts is None:
        number = 1 if partition.kind == "pooled" else clients if clients is not None else len(domains)
        train_owner = deal_evenly(sum(map(len, train)), number, generator(seed, "iid", "train"))
        held_owner = deal_evenly(sum(map(len, held)), number, generator(seed, "iid", "validation"))
    else:
        number = sum(counts)
        owners = []
        for domain, first, k, t, v in zip(domains, _starts(counts), counts, train, held, strict=False):
            if partition.kind == "dirichlet":
                assert partition.beta is not None
                pair = deal_by_class(domain.y[t], domain.y[v], k, partition.beta, seed, domain.name)
            else:
                shuffle = generator(seed, "split", "train", domain.name)
                if partition.kind == "split-published":
                    # The published code rounds down a share of the size before the hold-out was rounded.
                    share = 0 if validation == OFFICIAL else Fraction(str(validation))
                    nominal = float(len(t) if validation == OFFICIAL else (1 - share) * len(domain))
                    dealt = deal_in_order(len(t), k, nominal, shuffle)
                else:
                    dealt = deal_evenly(len(t), k, shuffle)
                pair = (dealt, deal_evenly(len(v), k, generator(seed, "split", "validation", domain.name)))
            owners.append((first + pair[0], first + pair[1]))
        train_owner = torch.cat([owner for owner, _ in owners])
        held_owner = torch.cat([owner for _, owner in owners])
    return Clients(
        partition,
        domains,
        counts,
        RowsByClient.group(_join(train, starts), train_owner, number),
        RowsByClient.group(_join(held, starts), held_owner, number),
    )


def _clients_per_domain(partition: Partition, clients: int | None, train_sizes: Sequence[int]) -> list[int] | None:
    """How many clients each domain gets; None where clients may mix domains. Refuses numbers that cannot work."""
    domains, rows = len(train_sizes), sum(train_sizes)
    if clients is not None and clients < 1:
        raise ValueError(f"there must be at least 1 client, not {clients}")
    if partition.kind == "pooled":
        if clients not in (None, 1):
            raise ValueError(
                f"partition 'pooled' puts all rows in 1 client, not {clients}; use 'iid' to share them out"
            )
        return None
    wanted = domains if clients is None else clients
    if wanted > rows:
        raise ValueError(f"{wanted} clients are too many for {rows} training rows; use at most {rows}")
    if partition.kind == "iid":
        return None
    if partition.kind == "sub-environments":
        if wanted > domains:
            raise ValueError(
                f"partition 'sub-environments' puts several of the {domains} domains in a client, so {wanted} clients "
                "are too many; use fewer, or 'split'"
            )
        return None
    if partition.kind == "domain":
        if wanted != domains:
            raise ValueError(
                f"partition 'domain' makes one client for each of the {domains} domains, not {wanted}; "
                "leave the number of clients out, or use 'split'"
            )
        return [1] * domains
    if wanted < domains:
        raise ValueError(
            f"{wanted} clients are too few for {domains} domains, because in partition '{partition.kind}' a client has "
            f"one domain; use at least {domains}, or the partition 'iid'"
        )
    if partition.kind == "dirichlet" and wanted % domains == 0:
        each = wanted // domains
        if each > min(train_sizes):
            raise ValueError(
                f"{wanted} clients make {each} for a domain of {min(train_sizes)} training rows; "
                f"use at most {domains * min(train_sizes)}"
            )
        return [each] * domains
    return split_domains(train_sizes, wanted)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each part begins when parts of these sizes are laid end to end, and where the last one ends."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def _join(rows: Sequence[Tensor], starts: Sequence[int]) -> Tensor:
    return torch.cat([start + part for start, part in zip(starts, rows, strict=False)])
