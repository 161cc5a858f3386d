"""Mini-batches that are drawn first and read later, those of many clients at once.

A stack of clients reads its rows with one gather instead of one for each client. So the rows of all clients are
numbered through (`RowPool`), and a client only says which rows its next batch has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from farfield.federation.client import Batch, Client, Rows, as_float
from farfield.tasks.augment import AUGMENTATIONS
from farfield.tasks.task import Domain

#: Up to so many bytes the rows of all clients are copied into one tensor; beyond, each client's are read in turn.
POOL_BYTES = 2 << 30
#: Numbers in the parameters of a stack: more do not fit into the caches of a core, and a larger stack is slower.
STACK_NUMBERS = 1 << 20


class Planned(NamedTuple):
    """A mini-batch by the numbers that its rows have in the pool; read already where an augmentation must be drawn."""

    rows: int
    #: The numbers of all rows in the order of a pass, and the place in it where the batch starts.
    order: Tensor | None
    start: int = 0
    batch: Batch | None = None

    @property
    def numbers(self) -> Tensor:
        assert self.order is not None
        return self.order[self.start : self.start + self.rows]


@dataclass
class PlannedClient(Client):
    """A client whose mini-batches are plans, for a stack to read."""

    pool: RowPool = field(default_factory=lambda: RowPool())

    def batches(self, size: int, epochs: int = 1, steps: int | None = None, least: int = 1) -> Iterator[Batch]:
        if self.augment in AUGMENTATIONS or not self.pool.holds(self.training):
            for batch in super().batches(size, epochs, steps, least):
                yield Planned(len(batch.y), None, batch=batch)  # type: ignore[misc]
            return
        numbers = self.pool.numbers(self.training)
        drawn, order = None, numbers
        for permutation, start, end in self._batch_rows(size, epochs, steps, least):
            if permutation is not drawn:
                drawn, order = permutation, numbers[permutation]
            yield Planned(end - start, order, start)  # type: ignore[misc]


def steps_together(drawn: Sequence[Sequence[Planned]]) -> Iterator[tuple[int, int, int]]:
    """The steps of clients in order: a number, and neighbours (from, to) whose batches of it have one length."""
    for step in range(max(len(batches) for batches in drawn)):
        first, length = 0, None
        for number, batches in enumerate(drawn):
            here = batches[step].rows if step < len(batches) else None
            if here != length:
                if length is not None:
                    yield step, first, number
                first, length = number, here
        if length is not None:
            yield step, first, len(drawn)


class StepReader:
    """Reads the mini-batches of clients step by step. The orders of a pass are put side by side once for its steps."""

    def __init__(self, pool: RowPool, kind: Rows) -> None:
        self._pool, self._kind = pool, kind
        self._passes: dict[tuple[int, int], tuple[list[Tensor], Tensor]] = {}

    def read(self, place: tuple[int, int], batches: Sequence[Planned]) -> Batch:
        """The batches of neighbours (from, to), all of one length, as one stack."""
        orders = [each.order for each in batches if each.order is not None]
        if len(orders) < len(batches):
            read = [each.batch or _first(self._pool.read(self._kind, [each.numbers])) for each in batches]
            return Batch(torch.stack([batch.x for batch in read]), torch.stack([batch.y for batch in read]))
        start, rows = batches[0].start, batches[0].rows
        if any(each.start != start for each in batches):
            return self._pool.read(self._kind, [each.numbers for each in batches])
        known, table = self._passes.get(place, ([], None))
        if table is None or any(one is not other for one, other in zip(known, orders, strict=True)):
            if len({len(order) for order in orders}) > 1:
                return self._pool.read(self._kind, [each.numbers for each in batches])
            table = torch.stack(orders)
            self._passes[place] = orders, table
        return self._pool.read_table(self._kind, table[:, start : start + rows])


def _first(stacked: Batch) -> Batch:
    return Batch(stacked.x[0], stacked.y[0])


class RowPool:
    """The rows of many clients in one tensor for each kind of rows. Domains that share their tensors share a place."""

    def __init__(self, most: int = POOL_BYTES) -> None:
        self._kinds: dict[object, _Joined] = {}
        self._room = most
        #: The most numbers in the parameters of a stack; fewer once the memory has not sufficed for as many.
        self.stack_numbers = STACK_NUMBERS
        #: The phases of runs of which it was told that their clients cannot be a stack.
        self.told: set[tuple[int, str]] = set()
        self._numbers: WeakKeyDictionary[Rows, Tensor] = WeakKeyDictionary()

    def holds(self, rows: Rows) -> bool:
        """Return whether these rows are in the pool, after adding them if there is room."""
        if rows in self._numbers:
            return True
        parts = rows.parts()
        if not parts:
            return False
        joined = self._kinds.setdefault(_kind(parts[0][0]), _Joined())
        new = [domain for domain, _ in parts if domain not in joined]
        size = sum(domain.x.nbytes + domain.y.nbytes for domain in new)
        if size > self._room or any(_kind(domain) != _kind(parts[0][0]) for domain in new):
            return False
        self._room -= size
        self._numbers[rows] = torch.cat([own + joined.start_of(domain) for domain, own in parts])
        return True

    def numbers(self, rows: Rows) -> Tensor:
        """The numbers of rows that the pool holds, in order."""
        return self._numbers[rows]

    def read(self, kind: Rows, numbers: Sequence[Tensor]) -> Batch:
        """The rows with these numbers, as many for each client, as one stack. `kind` are any rows of their kind."""
        return self.read_table(kind, torch.stack([*numbers]))

    def read_table(self, kind: Rows, numbers: Tensor) -> Batch:
        """As `read`, with the numbers in a table (client, row)."""
        x, y = self._kinds[_kind(kind.parts()[0][0])].tensors
        return Batch(as_float(kind.read(x, numbers)), kind.read(y, numbers))


def _kind(domain: Domain) -> object:
    return domain.x.dtype, domain.x.shape[1:], domain.y.dtype


class _Joined:
    """Domains one after the other."""

    def __init__(self) -> None:
        self._starts: dict[tuple[int, int], int] = {}
        # Kept as they are: while they are here, no other tensor has their address.
        self._domains: list[Domain] = []
        self._rows = 0
        self._tensors: tuple[Tensor, Tensor] | None = None

    def __contains__(self, domain: Domain) -> bool:
        return (domain.x.data_ptr(), domain.y.data_ptr()) in self._starts

    def start_of(self, domain: Domain) -> int:
        """The number of a domain's first row; a new domain is added."""
        key = (domain.x.data_ptr(), domain.y.data_ptr())
        if key not in self._starts:
            self._starts[key] = self._rows
            self._domains.append(domain)
            self._rows += len(domain)
            self._tensors = None
        return self._starts[key]

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        if self._tensors is None:
            xs, ys = [d.x for d in self._domains], [d.y for d in self._domains]
            self._tensors = (torch.cat(xs), torch.cat(ys)) if len(xs) > 1 else (xs[0], ys[0])
        return self._tensors
