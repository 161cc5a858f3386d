"""Rows that a model cannot use, named before any work."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farfield.models import ModelSpec
from farfield.tasks.task import Domain, Task


def check_rows(domain: Domain, task: Task, model: ModelSpec) -> None:
    """Refuse rows that would only drop a client from every round later on. Raises ValueError, one sentence."""
    where = f"domain '{domain.name}' of task '{task.name}'"
    if task.preparation is not None:
        task.preparation.check(domain)
        shape = task.preparation.shape
    else:
        shape = tuple(domain.x.shape[1:])
    if shape != model.input_shape:
        raise ValueError(f"{where} has examples of shape {shape}, the model takes {model.input_shape}")
    if task.preparation is None:
        _check_examples(domain, where)
    if task.kind == "regression":
        if not bool(torch.isfinite(domain.y).all()):
            raise ValueError(f"{where} has a target that is not finite")
        return
    labels = max(2, model.outputs)
    if domain.y.is_floating_point() or int(domain.y.min()) < 0 or int(domain.y.max()) >= labels:
        raise ValueError(f"{where} has labels that are not class numbers from 0 to {labels - 1}, which the model gives")


def _check_examples(domain: Domain, where: str) -> None:
    if domain.x.dtype not in (torch.float32, torch.uint8):
        raise ValueError(f"{where} has examples of {domain.x.dtype}; give float32, or uint8 for pixels")
    if domain.x.is_floating_point() and not bool(torch.isfinite(domain.x).all()):
        row = int((~torch.isfinite(domain.x.flatten(1))).any(dim=1).nonzero()[0]) + 1
        raise ValueError(f"{where} has a value that is not finite in row {row}; mend or leave out such rows")


def class_rows(task: Task | None, always_held_out: Sequence[str]) -> tuple[int, ...]:
    """Return the rows of each class over the domains that train in some run; nothing where no rows are here."""
    if task is None or task.kind == "regression":
        return ()
    labels = torch.cat([domain.y for domain in task.domains if domain.name not in always_held_out])
    return tuple(labels[labels >= 0].long().bincount(minlength=len(task.classes)).tolist())
