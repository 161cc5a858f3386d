"""A client as a phase sees it: its data, its persistent state, its randomness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from farfield.federation.device_rows import device_rows
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.randomness import generator
from farfield.tasks.augment import AUGMENTATIONS
from farfield.tasks.task import Domain

Segments = Sequence[tuple[str, Tensor]]
#: Full passes take this many rows at a time, fewer where these are more bytes: a network's layers hold many times that.
ROWS_AT_ONCE = 1024
BYTES_AT_ONCE = 16 << 20
FEWEST_AT_ONCE = 16


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


class Rows:
    """Rows of one or more domains, read without copying them first; what is read is on `device`."""

    def __init__(self, domains: Mapping[str, Domain], segments: Segments, device: torch.device = CPU) -> None:
        self._parts = [(domains[name], rows) for name, rows in segments if len(rows)]
        self.device = device
        self._measure()

    def _measure(self) -> None:
        self._ends = torch.tensor([len(rows) for _, rows in self._parts]).cumsum(0) if len(self._parts) > 1 else None
        self.count = sum(len(rows) for _, rows in self._parts)

    def __len__(self) -> int:
        return self.count

    @property
    def at_once(self) -> int:
        """How many of these rows pass through a model together where nothing but memory decides."""
        if not self._parts:
            return ROWS_AT_ONCE
        example = self._parts[0][0].x[0].numel() * torch.get_default_dtype().itemsize
        return min(ROWS_AT_ONCE, max(FEWEST_AT_ONCE, BYTES_AT_ONCE // max(example, 1)))

    def pick(self, index: Tensor) -> Rows:
        """Only the rows at these positions (ascending)."""
        picked = Rows({}, (), self.device)
        start = 0
        for domain, rows in self._parts:
            here = index[(index >= start) & (index < start + len(rows))] - start
            if len(here):
                picked._parts.append((domain, rows[here]))
            start += len(rows)
        picked._measure()
        return picked

    def rows_of(self, domain: str) -> Tensor:
        """Which rows of a domain these are."""
        parts = [rows for part, rows in self._parts if part.name == domain]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def parts(self) -> Sequence[tuple[Domain, Tensor]]:
        """The rows by domain, in order."""
        return self._parts

    def labels(self) -> Tensor:
        """The labels of all rows, in order and on the CPU, without reading the rows."""
        return torch.cat([domain.y[rows] for domain, rows in self._parts])

    def all(self) -> Batch:
        """Every example, in order."""
        if self._ends is not None:
            return self.take(torch.arange(self.count))
        domain, rows = self._parts[0]
        return Batch(as_float(self.read(domain.x, rows)), self.read(domain.y, rows))

    def take(self, index: Tensor) -> Batch:
        """The examples at these positions, as a float batch."""
        if self._ends is None:
            domain, rows = self._parts[0]
            chosen = rows[index]
            return Batch(as_float(self.read(domain.x, chosen)), self.read(domain.y, chosen))
        part = torch.bucketize(index, self._ends, right=True)
        first_domain = self._parts[0][0]
        x = torch.empty((len(index), *first_domain.x.shape[1:]), dtype=first_domain.x.dtype, device=self.device)
        y = torch.empty(len(index), dtype=first_domain.y.dtype, device=self.device)
        start = 0
        for number, (domain, rows) in enumerate(self._parts):
            here = (part == number).nonzero().squeeze(1)
            chosen, to = rows[index[here] - start], here.to(self.device)
            x[to], y[to] = self.read(domain.x, chosen), self.read(domain.y, chosen)
            start += len(rows)
        return Batch(as_float(x), y)

    def read(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Return some rows of a tensor on the CPU, on the device of these rows."""
        if self.device.type != "cpu":
            return device_rows(self.device).read(tensor, rows)
        # Several times as fast as `tensor[rows]`, which does not know that it copies whole rows.
        return tensor.index_select(0, rows.reshape(-1)).view(*rows.shape, *tensor.shape[1:])


def as_float(x: Tensor) -> Tensor:
    return x.to(torch.get_default_dtype()) / 255 if x.dtype == torch.uint8 else x


@dataclass
class Client:
    """One client during one phase.

    `state` holds named tensors that stay with the client between rounds, or until the end of this one where the name
    begins with `client_state.ROUND_ONLY`.
    """

    id: int
    name: str
    domain: str
    training: Rows
    validation: Rows
    seed: int
    round: int
    phase: str
    state: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    examples: int = 0
    #: What is done to training batches, by name; validation and full passes see the rows as they are.
    augment: str = "none"
    #: Whether the noise of private training comes from the operating system instead of the seed, which others know.
    secure_noise: bool = False

    @property
    def device(self) -> torch.device:
        """Where the client computes: batches, its state and what was broadcast are there during a phase."""
        return self.training.device

    @property
    def samples(self) -> int:
        """How many training examples the client holds."""
        return len(self.training)

    def balanced_weights(self, classes: int) -> Tensor:
        """A factor per class for this client's training rows: classes that are there have the same weight in all.

        n / (K n_c), with n_c of n rows in class c and K classes that are there; the mean over the rows is 1.
        """
        counts = torch.bincount(self.training.labels(), minlength=classes).double()
        there = counts > 0
        weights = counts.sum() / (there.sum() * counts.clamp(min=1.0))
        return torch.where(there, weights, 0.0).to(torch.get_default_dtype()).to(self.device)

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers that depend on (seed, round, client, phase, purpose) and on nothing else, drawn on the CPU.

        The client counts by its name, so that the order in which clients are listed changes nothing.
        """
        return generator(self.seed, self.round, self.name, self.phase, purpose)

    def carve(self, share: float, purpose: str) -> tuple[Rows, Rows]:
        """The training rows in two parts, the second holding about `share` of them; the same parts in every round."""
        rows = len(self.training)
        taken = max(1, round(share * rows)) if share > 0 else 0
        if taken >= rows:
            raise ValueError(f"client '{self.name}' has {rows} training rows, too few to set {purpose} rows aside")
        order = torch.randperm(rows, generator=generator(self.seed, self.name, purpose))
        return self.training.pick(order[taken:].sort().values), self.training.pick(order[:taken].sort().values)

    def batches(self, size: int, epochs: int = 1, steps: int | None = None, least: int = 1) -> Iterator[Batch]:
        """Shuffled mini-batches: `epochs` passes, or exactly `steps` batches. `size` 0 means the full batch.

        A last batch of fewer than `least` rows joins the one before it.
        """
        augmentation = AUGMENTATIONS.get(self.augment)
        draws = self.generator("augment") if augmentation is not None else None
        for order, start, end in self._batch_rows(size, epochs, steps, least):
            batch = self.training.take(order[start:end])
            if augmentation is not None and draws is not None:
                batch = Batch(augmentation(batch.x, draws), batch.y)
            yield batch

    def _batch_rows(self, size: int, epochs: int, steps: int | None, least: int) -> Iterator[tuple[Tensor, int, int]]:
        """Which training rows are in each mini-batch: an order of all rows, and the places in it from and to.

        Steps and examples are counted as they are taken.
        """
        rows = len(self.training)
        size = min(size, rows) if size else rows
        starts = list(range(0, rows, size))
        if len(starts) > 1 and rows - starts[-1] < least:
            starts.pop()
        ends = [*starts[1:], rows]
        order = self.generator("batches")
        done = 0
        epoch = 0
        while epoch < epochs if steps is None else done < steps:
            permutation = torch.randperm(rows, generator=order)
            for start, end in zip(starts, ends, strict=True):
                if steps is not None and done == steps:
                    return
                done += 1
                self.steps += 1
                self.examples += end - start
                yield permutation, start, end
            epoch += 1

    def sweep(self, rows: Rows, size: int | None = None) -> Iterator[Batch]:
        """Every row once, in order, in large batches: for evaluation and full-batch gradients.

        Without a `size`, as many as memory allows (`Rows.at_once`). Batches are of about equal size: BatchNorm could do
        nothing with one row left over.
        """
        size = rows.at_once if size is None else size
        if 0 < len(rows) <= size:
            yield rows.all()
            return
        for part in torch.arange(len(rows)).tensor_split(-(-len(rows) // size)) if len(rows) else ():
            yield rows.take(part)
