"""How rows are shared out: validation rows first, then evenly, in the published order, or with skewed classes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.math.domain_split import share_rows
from farfield.reproducibility.randomness import derive_seed
from farfield.tasks.task import TaskKind


@dataclass(frozen=True, eq=False)
class RowsByClient:
    """Rows of one split, client after client. Rows are numbered through all domains; `offsets` has one entry more."""

    rows: Tensor
    offsets: Tensor

    @classmethod
    def group(cls, rows: Tensor, owner: Tensor, clients: int) -> RowsByClient:
        # A stable sort keeps a client's rows ascending, and so one domain after the other.
        offsets = torch.zeros(clients + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(owner, minlength=clients), 0, out=offsets[1:])
        return cls(rows[torch.argsort(owner, stable=True)], offsets)

    def of(self, client: int) -> Tensor:
        start, end = self.offsets[client : client + 2].tolist()
        return self.rows[start:end]


def split_rows(y: Tensor, fraction: float, shuffle: torch.Generator, kind: TaskKind) -> tuple[Tensor, Tensor]:
    """Training and validation row numbers, ascending and disjoint, at least one of each.

    Validation gets the whole part of `fraction` of the rows. In classification each class gives its share to within
    a row, and keeps a row for training where that can be had.
    """
    check_fraction(fraction)
    rows = len(y)
    if rows < 2:
        raise ValueError(f"{rows} row cannot be split into training and validation rows; two are needed")
    # As a decimal: 0.29 of 100 rows is 29, which the binary product misses.
    held = min(max(int(Fraction(str(fraction)) * rows), 1), rows - 1)
    order = torch.randperm(rows, generator=shuffle)
    if kind == "regression":
        chosen = order[:held]
    else:
        _, label, counts = torch.unique(y, return_inverse=True, return_counts=True)
        # Classes in turn, each in shuffled order; the first of each class are taken.
        by_class = torch.split_with_sizes(order[torch.argsort(label[order], stable=True)], counts.tolist())
        quotas = class_quotas(counts, held)
        chosen = torch.cat([part[:quota] for part, quota in zip(by_class, quotas.tolist(), strict=True)])
    in_validation = torch.zeros(rows, dtype=torch.bool)
    in_validation[chosen] = True
    return (~in_validation).nonzero().squeeze(1), in_validation.nonzero().squeeze(1)


def deal_in_order(rows: int, clients: int, nominal: float, shuffle: torch.Generator) -> Tensor:
    """The owner of each row in FedIIR's published code: equal whole parts, and what is left over to the last client."""
    # A part of the nominal size may round down to nothing where the rows would do.
    sizes = torch.tensor(share_rows(rows, clients, nominal if nominal >= clients else None))
    owner = torch.empty(rows, dtype=torch.int64)
    owner[torch.randperm(rows, generator=shuffle)] = torch.repeat_interleave(torch.arange(clients), sizes)
    return owner


def deal_evenly(rows: int, clients: int, shuffle: torch.Generator) -> Tensor:
    """The owner of each row; clients' sizes differ by at most one."""
    owner = torch.empty(rows, dtype=torch.int64)
    owner[torch.randperm(rows, generator=shuffle)] = torch.arange(rows) * clients // rows
    return owner


def deal_by_class(
    train_y: Tensor, validation_y: Tensor, clients: int, beta: float, seed: int, domain: str
) -> tuple[Tensor, Tensor]:
    """The owners of a domain's training and validation rows, with each class shared out by one Dirichlet draw."""
    # NumPy, because PyTorch has no public Dirichlet that takes a generator.
    draw = np.random.Generator(np.random.PCG64(derive_seed(seed, "dirichlet", domain)))
    labels = (train_y.numpy(), validation_y.numpy())
    owners = tuple(np.empty(len(y), dtype=np.int64) for y in labels)
    for label in np.union1d(*labels):
        # In a fresh order for each class, or rounding would favour the same clients every time.
        order = draw.permutation(clients)
        ends = np.cumsum(draw.dirichlet(np.full(clients, beta)))
        ends /= ends[-1]
        for y, owner in zip(labels, owners, strict=True):
            rows = draw.permutation(np.flatnonzero(y == label))
            cuts = np.rint(ends * len(rows)).astype(np.int64)
            owner[rows] = order[np.searchsorted(cuts, np.arange(len(rows)), side="right")]
    _fill_empty(owners[0], clients)
    return torch.from_numpy(owners[0]), torch.from_numpy(owners[1])


def _fill_empty(owner: NDArray[np.int64], clients: int) -> None:
    """Give each client without rows one of the largest client's, in place."""
    sizes = np.bincount(owner, minlength=clients)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        owner[np.flatnonzero(owner == largest)[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1


def class_quotas(counts: Tensor, held: int) -> Tensor:
    """How many of `held` rows each class gives: its proportional share, rounded by largest remainder."""
    rows = int(counts.sum())
    quotas = counts * held // rows
    for _ in range(held - int(quotas.sum())):
        missing = counts * held - quotas * rows
        spare = counts - quotas
        # Classes that would be left without a training row come last.
        for least in (2, 1):
            if bool((spare >= least).any()):
                quotas[torch.where(spare >= least, missing, missing.min() - 1).argmax()] += 1
                break
    return quotas


def check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(
            f"the validation fraction must lie between 0 and 1, not be {fraction}; 0.1 keeps a tenth of each domain"
        )
