"""Tasks by name. A loader registers itself with what can be said about the task without loading it.

@register("my-task", summary="...", domains=("a", "b"), classes=2, kind="classification")
def load() -> Task: ...
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from farfield.errors import UserError
from farfield.tasks.task import Task, TaskKind

Loader = Callable[[], Task]


class UnknownTask(UserError):
    """No task has this name."""


@dataclass(frozen=True)
class TaskEntry:
    """What is known about a task before its data is read."""

    name: str
    summary: str
    #: Empty where the domains are known only once the data is read.
    domains: tuple[str, ...]
    #: How many classes; 0 for regression.
    classes: int
    kind: TaskKind
    #: Whether the data is here, so that `load` will not fail for lack of a file.
    available: bool


@dataclass(frozen=True)
class _Registered:
    loader: Loader
    summary: str
    domains: tuple[str, ...]
    classes: int
    kind: TaskKind
    available: Callable[[], bool]
    exact: bool


_TASKS: dict[str, _Registered] = {}


def register(
    name: str,
    *,
    summary: str,
    domains: Sequence[str],
    classes: int,
    kind: TaskKind,
    available: Callable[[], bool] = lambda: True,
    exact: bool = True,
) -> Callable[[Loader], Loader]:
    """Offer a loader under a name. `available` tells whether its files are here; it must be cheap.

    No `domains` means that only the data can tell them. `exact` is False for public sets that people keep parts of:
    then fewer domains or classes are a matter for the task's notes.
    """

    def add(loader: Loader) -> Loader:
        before = _TASKS.get(name)
        if before is not None and _origin(before.loader) != _origin(loader):
            raise ValueError(f"task '{name}' is already registered by {'.'.join(_origin(before.loader))}")
        _TASKS[name] = _Registered(loader, summary, tuple(domains), classes, kind, available, exact)
        load.cache_clear()
        return loader

    return add


def names() -> tuple[str, ...]:
    """The names of all tasks, in alphabetical order."""
    return tuple(sorted(_TASKS))


def describe(name: str) -> TaskEntry:
    """What a list of tasks shows about this one. The data stays unread."""
    task = _find(name)
    return TaskEntry(name, task.summary, task.domains, task.classes, task.kind, task.available())


@cache
def load(name: str) -> Task:
    """The task of this name. It is read once and shared by all callers, so its tensors must not be written to."""
    entry = _find(name)
    task = entry.loader()
    promised = (name, entry.kind, entry.domains or task.domain_names, entry.classes)
    if not entry.exact:
        promised = (name, entry.kind, task.domain_names, len(task.classes))
    if promised != (task.name, task.kind, task.domain_names, len(task.classes)):
        raise ValueError(
            f"task '{name}' was registered as {promised} but its loader gave "
            f"{(task.name, task.kind, task.domain_names, len(task.classes))}; make the two agree"
        )
    return task


def _find(name: str) -> _Registered:
    if name in _TASKS:
        return _TASKS[name]
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the tasks are {', '.join(names())}"
    raise UnknownTask(f"unknown task '{name}'; {hint}")


def _origin(loader: Loader) -> tuple[str, str]:
    # A module or notebook cell that runs again may replace its own task, but nobody else's.
    return loader.__module__, loader.__qualname__
