"""The figures that a client reports for its validation rows: sums by class, so that classes can weigh equally."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from farfield.federation.phase import Named
from farfield.math import auroc
from farfield.models import predicted_labels, task_loss


def validation_figures(parts: Sequence[tuple[Tensor, Tensor]], outputs: int) -> Named:
    """Return the declared outputs of the phase `evaluate` from a model's outputs and the labels, part by part.

    A regression and a client without validation rows have no figures by class.
    """
    rows = sum(len(y) for _, y in parts)
    if not rows:
        return {"loss": 0.0, "accuracy": 0.0, "rows": 0}
    loss = sum(float(task_loss(given, y, reduction="sum")) for given, y in parts)
    if parts[0][1].is_floating_point():
        return {"loss": loss / rows, "accuracy": 0.0, "rows": rows}
    classes = max(2, outputs)
    given, labels = torch.cat([part for part, _ in parts]), torch.cat([y for _, y in parts])
    correct = predicted_labels(given) == labels
    kind = torch.get_default_dtype()
    figures: dict[str, Tensor | float | int] = {
        "loss": loss / rows,
        "accuracy": int(correct.sum()) / rows,
        "rows": rows,
        "class_rows": labels.bincount(minlength=classes).to(kind),
        "class_loss": labels.bincount(task_loss(given, labels, reduction="none").double(), classes).to(kind),
        "class_correct": labels[correct].bincount(minlength=classes).to(kind),
    }
    area = auroc(given, labels)
    return figures if area is None else {**figures, "auroc": area}
