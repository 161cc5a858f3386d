"""Validation figures of each source domain, from what its clients tell of their rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from farfield.federation.federation import Replies, Reply


def pooled_name(replied: int, asked: int) -> str:
    """Return the name under which validation by secure sums is recorded, in place of the domains' names."""
    return f"all {asked} clients together" if replied == asked else f"{replied} of {asked} clients together"


def pooled_validation(replies: Replies, kind: str, asked: int) -> dict[str, dict[str, float]]:
    """Validation metrics over the rows of all clients together, where the server has sums alone.

    The AUROC is the mean of the clients' own, weighted by their rows. A round in which a client did not reply has
    another name, because its figures are of other rows.
    """
    rows = float(replies.sum("rows"))
    if not rows:
        return {}
    figures = {"loss": float(replies.mean("loss")), "n": rows}
    if kind != "regression":
        figures["accuracy"] = float(replies.mean("accuracy"))
        if replies.has("class_rows"):
            of_class, loss, correct = (replies.sum(name) for name in ("class_rows", "class_loss", "class_correct"))
            present = of_class > 0
            figures["accuracy"] = float(correct.sum() / of_class.sum())  # of whole numbers, so without a rounding
            figures["balanced_accuracy"] = float((correct / of_class)[present].mean())
            figures["balanced_loss"] = float((loss / of_class)[present].mean())
        if replies.has("auroc"):
            figures["auroc"] = float(replies.mean("auroc"))
    return {pooled_name(len(replies), asked): figures}


def validation_by_domain(replies: Replies, kind: str) -> dict[str, dict[str, float]]:
    """Validation metrics of each source domain, over the rows of all its clients.

    The AUROC of a domain with several clients is the mean of theirs, weighted by their pairs of rows of two classes, or
    by their rows where there are more classes: rows of different clients are never ranked against each other.
    """
    by_domain: dict[str, list[Reply]] = {}
    for reply in replies:
        if reply.values["rows"]:
            by_domain.setdefault(reply.domain, []).append(reply)
    return {
        domain: _regression_figures(of) if kind == "regression" else _classification_figures(of)
        for domain, of in by_domain.items()
    }


def _weighted(replies: Sequence[Reply], name: str) -> float:
    rows = [float(reply.values["rows"]) for reply in replies]
    return sum(n * float(reply.values[name]) for n, reply in zip(rows, replies, strict=True)) / sum(rows)


def _regression_figures(replies: Sequence[Reply]) -> dict[str, float]:
    return {"loss": _weighted(replies, "loss"), "n": sum(float(reply.values["rows"]) for reply in replies)}


def _classification_figures(replies: Sequence[Reply]) -> dict[str, float]:
    figures = {
        "loss": _weighted(replies, "loss"),
        "accuracy": _weighted(replies, "accuracy"),
        "n": sum(float(reply.values["rows"]) for reply in replies),
    }
    if all("class_rows" in reply.values for reply in replies):
        rows, loss, correct = (
            sum(torch.as_tensor(reply.values[name]).double() for reply in replies)
            for name in ("class_rows", "class_loss", "class_correct")
        )
        assert isinstance(rows, Tensor)
        present = rows > 0
        figures["balanced_accuracy"] = float((correct / rows)[present].mean())
        figures["balanced_loss"] = float((loss / rows)[present].mean())
    ranked = [(_pairs(reply), float(reply.values["auroc"])) for reply in replies if "auroc" in reply.values]
    total = sum(weight for weight, _ in ranked)
    if total > 0:
        figures["auroc"] = sum(weight * area for weight, area in ranked) / total
    return figures


def _pairs(reply: Reply) -> float:
    counts = torch.as_tensor(reply.values.get("class_rows", 0.0)).double().reshape(-1)
    return float(counts.prod()) if len(counts) == 2 else float(reply.values["rows"])
