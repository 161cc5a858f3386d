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

    A regression and a client without validation rows have no figures by class. Sums are made on the CPU.
    """
    parts = [(given.cpu(), y.cpu()) for given, y in parts]
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


def implausible_figures(values: Named, most_rows: int | None) -> str | None:
    """Return why figures of `evaluate` cannot be those of one set of rows, in one phrase; None if they can.

    `most_rows` are the most validation rows that the client can have, None if unknown.
    """
    if "rows" not in values:  # withheld, with privacy
        return None
    rows = float(values["rows"])
    if rows != int(rows) or (most_rows is not None and rows > most_rows):
        most = "" if most_rows is None else f", and it can have {most_rows}"
        return f"'rows' is {rows:g}{most}"
    by_class = [name for name in ("class_rows", "class_loss", "class_correct") if name in values]
    if not by_class:
        return None
    if len(by_class) < 3:
        return f"'{by_class[0]}' is there, and other figures by class are not"
    counts, losses, correct = (torch.as_tensor(values[name]).double() for name in by_class)
    # Counts are exact in float32 up to 2^24; beyond, they may be off by as much as rounding.
    if abs(float(counts.sum()) - rows) > 1e-6 * rows:
        return f"'class_rows' add up to {float(counts.sum()):g}, and 'rows' is {rows:g}"
    if bool((correct > counts).any()):
        return "'class_correct' has more rows of a class than 'class_rows'"
    if abs(float(correct.sum()) - float(values["accuracy"]) * rows) > 1e-6 * rows + 0.5:
        return f"'class_correct' adds up to {float(correct.sum()):g} of {rows:g} rows, and 'accuracy' says otherwise"
    if bool((losses[counts == 0] > 0).any()):
        return "'class_loss' has a loss of a class without rows"
    if abs(float(losses.sum()) - float(values["loss"]) * rows) > 1e-3 * (1.0 + float(losses.sum())):
        return f"'class_loss' adds up to {float(losses.sum()):g} over {rows:g} rows, and 'loss' says otherwise"
    return None
