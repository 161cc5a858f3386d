"""Every method against `prior`, which learns nothing: the commonest class, or the mean, of the training domains.

Where a bench has no run of `prior`, its figures follow from the label counts of each domain.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from farfield.diagnose.data_summary import DataSummary, together
from farfield.protocol.against_prior import AgainstPrior, compare_with_prior
from farfield.report.collect import Sweep
from farfield.report.metric_values import Key, methods, metric_values

PRIOR = "prior"


def prior_label(plan: Mapping[str, Any]) -> str | None:
    """Return the label of the variant that is `prior`; None where it was not run."""
    return next((label for label, name in methods(plan).items() if name == PRIOR), None)


def prior_values(sweep: Sweep, rule: str, metric: str, domains: tuple[str, ...]) -> dict[Key, float]:
    """The metric of `prior` per (held-out domain, seed): from its runs, else from the label counts; else empty."""
    label = prior_label(sweep.plan)
    if label is not None:
        measured = {key: v for key, v in metric_values(sweep, rule, metric)[label].items() if key[0] in domains}
        if len(measured) == len(domains) * len(sweep.plan["seeds"]):
            return measured
    if sweep.data is None:
        return {}
    fold_of = {name: group for group in (sweep.plan.get("folds") or {}).values() for name in group}
    computed = {d: _from_counts(sweep.data, d, fold_of.get(d, (d,)), metric) for d in domains}
    if any(value is None for value in computed.values()):
        return {}
    return {(d, seed): v for d, v in computed.items() if v is not None for seed in sweep.plan["seeds"]}


def against_prior(
    values: Mapping[str, Mapping[Key, float]], prior: Mapping[Key, float], metric: str
) -> dict[str, AgainstPrior]:
    """Each method against `prior`, corrected over the methods; empty where there is no `prior`."""
    comparable = {name: dict(of) for name, of in values.items() if of.keys() & prior.keys()}
    return compare_with_prior(comparable, dict(prior), metric) if comparable else {}


def _from_counts(data: DataSummary, held_out: str, fold: Collection[str], metric: str) -> float | None:
    """What `prior` scores on a domain when all outside its fold train: exact, but for rows set aside for validation."""
    there = next((domain for domain in data.domains if domain.name == held_out), None)
    others = [domain for domain in data.domains if domain.name not in fold]
    if there is None or not others or there.rows == 0:
        return None
    sources = together(others, "sources")
    if data.kind == "regression":
        error = there.std**2 + (there.mean - sources.mean) ** 2
        return {"loss": error, "rmse": math.sqrt(error)}.get(metric)
    # Of classes that are equally common, the one that scores best there: no method is to look better than it is.
    commonest = max(range(len(sources.counts)), key=lambda code: (sources.counts[code], there.counts[code]))
    present = sum(count > 0 for count in there.counts)
    hits = there.counts[commonest]
    return {
        "accuracy": hits / there.rows,
        "balanced_accuracy": (hits > 0) / present,
        # Equal scores rank nothing.
        "auroc": 0.5 if present > 1 else None,
    }.get(metric)
