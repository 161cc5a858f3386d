"""Leave-one-domain-out: who trains and who is held out."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from farfield.errors import UserError
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Domain, Task


class ProtocolError(UserError):
    """An evaluation that cannot be done as asked, in one sentence."""


def held_out_domains(task: Task | TaskOutline, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """The domains to hold out one by one; all of them when none is named."""
    names = task.domain_names
    if len(names) < 2:
        raise ProtocolError(
            f"task '{task.name}' has one domain only ({names[0]}), and leaving one out needs at least two: name a "
            "--domain with more of them, or train without holding one out ('farfield train')"
        )
    if not chosen or list(chosen) == ["all"]:
        return names
    for name in chosen:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(names)}"
            raise ProtocolError(f"task '{task.name}' has no domain '{name}' to hold out; {hint}")
    return tuple(dict.fromkeys(chosen))


def source_domains(task: Task, held_out: Sequence[str]) -> tuple[Domain, ...]:
    """The domains that take part: everything but what is held out."""
    sources = tuple(d for d in task.domains if d.name not in held_out)
    if not sources:
        raise ProtocolError(f"nothing is left of task '{task.name}' to train on when {', '.join(held_out)} is held out")
    return sources
