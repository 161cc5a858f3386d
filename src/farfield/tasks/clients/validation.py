"""Which rows of a domain validate: the data set's own split, a share of the rows, or a share made of whole groups."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.reproducibility.randomness import generator
from farfield.tasks.clients.row_shares import check_fraction, class_quotas, split_rows
from farfield.tasks.task import Domain, TaskKind

#: Validation rows as the data set itself sets them aside, instead of a share drawn by the seed.
OFFICIAL: Literal["official"] = "official"


def split_domain(
    domain: Domain, validation: float | Literal["official"], seed: int, kind: TaskKind
) -> tuple[Tensor, Tensor]:
    """Training and validation rows of a domain, ascending and disjoint.

    They depend on the seed, the domain's name, labels and groups, and on no other domain: a site that has this one
    alone finds the same rows as a bench that has them all.
    """
    shuffle = generator(seed, "validation", domain.name)
    try:
        if validation == OFFICIAL:
            return official_rows(domain)
        if domain.groups is None:
            return split_rows(domain.y, validation, shuffle, kind)
        return split_groups(domain.y, domain.groups, validation, shuffle, kind)
    except ValueError as error:
        raise ValueError(f"domain '{domain.name}': {error}") from None


def official_rows(domain: Domain) -> tuple[Tensor, Tensor]:
    """Training and validation rows as the data set's own split has them."""
    if domain.validation is None:
        raise ValueError("the data set has no official split; give a share of the rows for validation, such as 0.1")
    part = torch.zeros(len(domain), dtype=torch.int8)
    part[domain.validation] = 1
    if domain.outside is not None:
        part[domain.outside] = 2
    return (part == 0).nonzero().squeeze(1), (part == 1).nonzero().squeeze(1)


def split_groups(
    y: Tensor, groups: Tensor, fraction: float, shuffle: torch.Generator, kind: TaskKind
) -> tuple[Tensor, Tensor]:
    """As `split_rows`, with every group on one side, and so with about the share that was asked for.

    Groups come in a random order. One goes to validation if that brings the rows of each class nearer to what they
    would be without groups. Where none does, because all are large, the smallest goes.
    """
    check_fraction(fraction)
    member = _numbered_as_they_come(groups)
    sizes = torch.bincount(member)
    if len(sizes) < 2:
        raise ValueError(f"all {len(y)} rows are of one group, which cannot both train and validate; two are needed")
    label = torch.zeros(len(y), dtype=torch.int64)
    if kind == "classification":
        _, label = torch.unique(y, return_inverse=True)
    held = min(max(int(Fraction(str(fraction)) * len(y)), 1), len(y) - 1)
    wanted = class_quotas(torch.bincount(label), held).numpy()
    classes = len(wanted)
    counts = torch.bincount(member * classes + label, minlength=len(sizes) * classes).view(-1, classes).numpy()
    order = torch.randperm(len(sizes), generator=shuffle)
    chosen: list[int] = []
    lacking = wanted
    for number in order.tolist():
        after = lacking - counts[number]
        if _miss(after) < _miss(lacking) and len(chosen) < len(sizes) - 1:
            chosen.append(number)
            lacking = after
            if not (lacking > 0).any():
                break
    if not chosen:
        chosen = [int(order[sizes[order].argmin()])]
    held_group = torch.zeros(len(sizes), dtype=torch.bool)
    held_group[chosen] = True
    in_validation = held_group[member]
    return (~in_validation).nonzero().squeeze(1), in_validation.nonzero().squeeze(1)


def _numbered_as_they_come(groups: Tensor) -> Tensor:
    """The groups' numbers in the order of their first rows here: what they are called elsewhere changes nothing."""
    _, first, member = np.unique(groups.numpy(), return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[member.reshape(-1)])


def _miss(lacking: NDArray[np.int64]) -> int:
    """How far a choice is off. A row too many counts as three too few: what lacks can still come with a later group."""
    return int(np.where(lacking < 0, -3 * lacking, lacking).sum())
