"""A part of a large task for a quick look: the same shares of domains and classes, always the same rows.

    small = part_of(task, 2000)

Rows of one group stay together. A part is no task of its own: its name and its first note say that it is a part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.errors import UserError
from farfield.tasks.note_prefixes import QUICK_LOOK
from farfield.tasks.task import Domain, Task

#: Fewer rows in a domain can hardly be trained on and validated.
LEAST_PER_DOMAIN = 10

Rows = NDArray[np.int64]


class PartError(UserError):
    """A number of rows that no part can have."""


def part_of(task: Task, rows: int) -> Task:
    """Return about so many rows of a task, drawn by domain and class; the task itself where it has no more.

    Whole groups are taken, so that their number can lie a little above `rows`.
    """
    sizes = [len(domain) for domain in task.domains]
    least = sum(min(size, LEAST_PER_DOMAIN) for size in sizes)
    if rows < least:
        raise PartError(
            f"--rows {rows} is too few for the {len(sizes)} domains of task '{task.name}': give at least {least}"
        )
    if rows >= sum(sizes):
        note = f"--rows {rows} takes all {sum(sizes):,} rows of task '{task.name}'"
        return replace(task, notes=(note, *task.notes))
    shares = _shares(sizes, rows, [min(size, LEAST_PER_DOMAIN) for size in sizes])
    parts = [
        _draw(domain, share, task.kind == "classification") for domain, share in zip(task.domains, shares, strict=True)
    ]
    domains = tuple(_rows_of(domain, part) for domain, part in zip(task.domains, parts, strict=True))
    taken = sum(map(len, parts))
    note = (
        f"{QUICK_LOOK}{taken:,} of {sum(sizes):,} rows, drawn by domain and class (--rows {rows}): figures "
        "of the whole task can differ"
    )
    return replace(
        task,
        name=f"{task.name} ({taken} of {sum(sizes)} rows)",
        domains=domains,
        notes=(note, *task.notes),
        fingerprint=f"{task.fingerprint} {_digest(parts)}" if task.fingerprint else "",
        images=None,
    )


def _shares(sizes: list[int], total: int, least: list[int]) -> list[int]:
    """Whole numbers near the sizes' shares of `total`: what is too small gets its least, the others the rest."""
    made, free = list(least), list(range(len(sizes)))
    while free:
        rest = total - sum(made[number] for number in range(len(sizes)) if number not in free)
        exact = {number: sizes[number] * rest / sum(sizes[other] for other in free) for number in free}
        short = [number for number in free if exact[number] < least[number]]
        if not short:
            by_remainder = sorted(free, key=lambda number: math.floor(exact[number]) - exact[number])
            over = rest - sum(math.floor(share) for share in exact.values())
            for place, number in enumerate(by_remainder):
                made[number] = math.floor(exact[number]) + (place < over)
            break
        free = [number for number in free if number not in short]
    return made


def _draw(domain: Domain, share: int, classes: bool) -> Rows:
    """So many rows of a domain, ascending: each class, and each part of an official split, by its share."""
    units = _units(domain)
    if classes:
        strata = np.array([int(domain.y[int(unit[0])]) for unit in units])
    else:
        strata = np.zeros(len(units), dtype=np.int64)
    if domain.validation is not None:
        kind = np.zeros(len(domain), dtype=np.int64)
        kind[domain.validation.numpy()] = 1
        if domain.outside is not None:
            kind[domain.outside.numpy()] = 2
        strata = strata * 3 + kind[[int(unit[0]) for unit in units]]
    order = np.random.default_rng(_seed(domain.name)).permutation(len(units))
    names, counts = np.unique(strata, return_counts=True)
    rows_in = [int(sum(len(units[u]) for u in np.flatnonzero(strata == name))) for name in names]
    spare = 1 if share >= len(names) else 0
    wanted = dict(zip(names.tolist(), _shares(rows_in, share, [spare] * len(counts)), strict=True))
    taken: list[Rows] = []
    for number in order:
        stratum = int(strata[number])
        if wanted[stratum] > 0:
            taken.append(units[number])
            wanted[stratum] -= len(units[number])
    return np.sort(np.concatenate(taken))


def _units(domain: Domain) -> list[Rows]:
    """The rows that stay together: those of a group, else each by itself."""
    if domain.groups is None:
        return list(np.arange(len(domain)).reshape(-1, 1))
    _, number = np.unique(domain.groups.numpy(), return_inverse=True)
    by_group = np.argsort(number, kind="stable")
    return np.split(by_group, np.cumsum(np.bincount(number))[:-1])


def _rows_of(domain: Domain, rows: Rows) -> Domain:
    chosen = torch.from_numpy(rows)
    return replace(
        domain,
        x=domain.x[chosen],
        y=domain.y[chosen],
        validation=_places(domain.validation, rows),
        outside=_places(domain.outside, rows),
        groups=None if domain.groups is None else domain.groups[chosen],
        cells=None if domain.cells is None else domain.cells.iloc[rows],
    )


def _places(numbers: torch.Tensor | None, rows: Rows) -> torch.Tensor | None:
    """Where rows of a list are among the chosen ones."""
    return None if numbers is None else torch.from_numpy(np.flatnonzero(np.isin(rows, numbers.numpy())))


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"rows of {name}".encode()).digest()[:8])


def _digest(parts: Iterable[Rows]) -> str:
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]
