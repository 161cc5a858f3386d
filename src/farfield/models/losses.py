"""The loss that a model's outputs ask for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.math.stacks import mean_of_classes, mean_of_logits, mean_square


def task_loss(logits: Tensor, targets: Tensor, reduction: str = "mean", class_weights: Tensor | None = None) -> Tensor:
    """Squared error for real targets, binary cross-entropy for one logit, cross-entropy otherwise.

    For a stack of clients, with logits (client, row, output) and targets (client, row), it is one value per client.
    `class_weights` has a factor per class, which multiplies the loss of a row; the mean is over rows, not over factors.
    """
    if class_weights is not None:
        rows = task_loss(logits, targets, "none") * class_weights.gather(-1, targets)
        return {"mean": rows.mean(-1), "sum": rows.sum(-1), "none": rows}[reduction]
    if targets.dim() > 1:
        if reduction == "mean" and targets.is_floating_point():
            return mean_square(logits.reshape(targets.shape), targets)
        if reduction == "mean" and logits.shape[-1] == 1:
            return mean_of_logits(logits.squeeze(-1), targets.to(logits.dtype))
        rows = task_loss(logits.flatten(0, -2), targets.flatten(), "none").view(targets.shape)
        if reduction == "mean":
            return mean_of_classes(rows)
        return {"mean": rows.mean(-1), "sum": rows.sum(-1), "none": rows}[reduction]
    if targets.is_floating_point():
        return F.mse_loss(logits.reshape(targets.shape), targets, reduction=reduction)
    if logits.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(logits.squeeze(-1), targets.to(logits.dtype), reduction=reduction)
    return F.cross_entropy(logits, targets, reduction=reduction)


def predicted_labels(logits: Tensor) -> Tensor:
    return (logits.squeeze(-1) > 0).long() if logits.shape[-1] == 1 else logits.argmax(-1)


def probabilities(logits: Tensor) -> Tensor:
    """Class probabilities, one column per class; one logit gives two columns."""
    if logits.shape[-1] == 1:
        p = torch.sigmoid(logits)
        return torch.cat([1 - p, p], dim=-1)
    return torch.softmax(logits, dim=-1)
