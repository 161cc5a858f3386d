"""Folds: which domains are held out together.

Leave-one-domain-out holds out one domain in each run. With many domains, several of them can be held out in one run: a
group that is named (`a+b`), or one of K folds. Each held-out domain is still measured and counted by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farfield.protocol.leave_one_out import ProtocolError, held_out_domains
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Task

#: Between the domains of a group, as it is typed.
TOGETHER = "+"
#: A fold's name says all its domains up to this length, then the first one and how many more.
LONGEST_FOLD_NAME = 60

Folds = dict[str, tuple[str, ...]]


def held_out_folds(
    task: TaskOutline, chosen: Sequence[str | Sequence[str]] | None, count: int | None = None
) -> tuple[tuple[str, ...], Folds]:
    """Return the held-out domains in order, and the folds by name; no folds where each domain is held out alone.

    `chosen` has domains, and groups as lists or as 'a+b'; None or 'all' is every domain. `count` deals the chosen
    domains out to so many folds.
    """
    groups = [_group(task, entry) for entry in chosen or ()]
    if not groups or groups == [("all",)]:
        groups = [(name,) for name in held_out_domains(task, None)]
    domains = held_out_domains(task, [name for group in groups for name in group])
    if count is not None:
        if any(len(group) > 1 for group in groups):
            raise ProtocolError("groups of held-out domains are folds already; omit --folds, or name single domains")
        groups = deal({name: task.rows[name] for name in domains}, count)
    groups = list(dict.fromkeys(groups))
    _check_disjoint(task, groups)
    if all(len(group) == 1 for group in groups):
        return domains, {}
    names = [fold_name(group) for group in groups]
    for name, group in zip(names, groups, strict=True):
        if len(group) > 1 and name in task.rows:
            raise ProtocolError(f"the group {name} has the name of a domain; rename that domain")
    return tuple(name for group in groups for name in group), dict(zip(names, groups, strict=True))


def deal(rows: Mapping[str, int], count: int) -> list[tuple[str, ...]]:
    """Deal domains out to `count` folds with about as many domains and rows in each; no chance is involved.

    From the largest to the smallest they go to the folds back and forth: 1, 2, 3, 3, 2, 1, 1, 2, …
    """
    if not 2 <= count <= len(rows):
        raise ProtocolError(f"--folds {count}: {len(rows)} held-out domains can be dealt out to 2 to {len(rows)} folds")
    place = {name: number for number, name in enumerate(rows)}
    folds: list[list[str]] = [[] for _ in range(count)]
    for number, name in enumerate(sorted(rows, key=lambda name: (-rows[name], place[name]))):
        lap, step = divmod(number, count)
        folds[step if lap % 2 == 0 else count - 1 - step].append(name)
    return [tuple(sorted(fold, key=place.__getitem__)) for fold in folds]


def fold_name(group: Sequence[str]) -> str:
    """Return a fold's name: its domains, or the first one and how many more where that would be long."""
    name = TOGETHER.join(group)
    return name if len(name) <= LONGEST_FOLD_NAME or len(group) == 1 else f"{group[0]} and {len(group) - 1} more"


def inner_units(task: Task | TaskOutline, folds: Folds, held_out: str) -> list[str]:
    """Return what nested selection holds out besides a fold: each other fold, and each domain that is in none."""
    fold_of = {name: fold for fold, group in folds.items() for name in group}
    units = dict.fromkeys(fold_of.get(name, name) for name in task.domain_names)
    return [unit for unit in units if unit != held_out]


def _group(task: TaskOutline, entry: str | Sequence[str]) -> tuple[str, ...]:
    """Return the domains of a group; a text with a plus sign is one unless a domain has that name."""
    if not isinstance(entry, str):
        return tuple(dict.fromkeys(entry))
    if entry in task.rows or TOGETHER not in entry:
        return (entry,)
    return tuple(dict.fromkeys(part.strip() for part in entry.split(TOGETHER) if part.strip()))


def _check_disjoint(task: TaskOutline, groups: Sequence[tuple[str, ...]]) -> None:
    seen: set[str] = set()
    for group in groups:
        twice = [name for name in group if name in seen]
        if twice:
            raise ProtocolError(f"domain '{twice[0]}' is held out in two groups; each domain belongs to one")
        seen.update(group)
        if len(group) == len(task.rows):
            raise ProtocolError(
                f"nothing is left of task '{task.name}' to train on when {fold_name(group)} is held out"
            )
