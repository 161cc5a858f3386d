"""The metric that leads a bench: headline and tables show it, and rounds are chosen by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farfield.errors import UserError
from farfield.protocol.metrics import METRICS

AUTO = "auto"
#: Classes are balanced while the commonest has at most this many times the share that equal classes would have.
BALANCED_UP_TO = 1.5

#: Other names that people type.
_ALIASES = {
    "acc": "accuracy",
    "bacc": "balanced_accuracy",
    "f1": "macro_f1",
    "auc": "auroc",
    "roc_auc": "auroc",
    "ap": "average_precision",
    "auprc": "average_precision",
    "calibration": "ece",
    "nll": "loss",
    "mse": "loss",
}


@dataclass(frozen=True)
class LeadingMetric:
    """A metric by its name in records, and one sentence that says why it leads."""

    name: str
    reason: str


def metric_named(kind: str, name: str) -> str:
    """Return the metric that a user means, by its own name or a usual other one."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    plain = _ALIASES.get(plain, plain)
    if plain not in METRICS[kind]:
        known = ", ".join(METRICS[kind])
        raise UserError(f"there is no metric '{name}' for a {kind}; choose one of {known}, or {AUTO}")
    return plain


def check_metric(name: str | None) -> None:
    """Refuse a metric that no kind of task has, before any data is read."""
    if name is None or name.strip().lower() == AUTO:
        return
    known = dict.fromkeys(metric for kind in METRICS for metric in METRICS[kind])
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    if _ALIASES.get(plain, plain) not in known:
        raise UserError(f"there is no metric '{name}'; choose one of {', '.join(known)}, or {AUTO}")


def leading_metric(kind: str, asked: str | None, class_rows: Sequence[int] = ()) -> LeadingMetric:
    """Return the metric that was asked for, or for None and 'auto' the one that fits the task.

    `class_rows` are the rows of each class over the domains that train in some run; classes without rows do not count.
    """
    if asked is not None and asked.strip().lower() != AUTO:
        return LeadingMetric(metric_named(kind, asked), "it was asked for")
    if kind == "regression":
        return LeadingMetric("rmse", "the label is a number: RMSE is in its unit")
    counts = sorted((count for count in class_rows if count), reverse=True)
    if len(counts) < 2:
        return LeadingMetric("accuracy", "how often each class occurs is not known")
    share, equal = counts[0] / sum(counts), 1 / len(counts)
    commonest = f"the commonest of {len(counts)} classes has {100 * share:.0f} % of the rows"
    if share <= BALANCED_UP_TO * equal:
        return LeadingMetric("accuracy", f"classes are balanced: {commonest}")
    name = "auroc" if len(counts) == 2 else "balanced_accuracy"
    return LeadingMetric(name, f"{commonest}, so naming it always would already be right that often")
