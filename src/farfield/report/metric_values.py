"""The held-out values of a sweep, by method, held-out domain and seed, and their summaries."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from farfield.algorithms import method, names
from farfield.errors import UserError
from farfield.protocol.metrics import rmse_from_loss
from farfield.protocol.statistics import Summary, summary
from farfield.report.collect import Sweep

#: The method that the others are compared with.
BASELINE = "fedavg"

#: What leads where a plan does not say it (benches of older versions), and where the leading metric has no value.
_USUAL = {"classification": "accuracy", "regression": "rmse"}
Key = tuple[str, int]
Values = dict[str, dict[Key, float]]


def leading_metric(plan: Mapping[str, Any]) -> str:
    """Return the metric that tables and page lead with."""
    return str(plan.get("metric") or _USUAL[plan["kind"]])


def usual_metric(plan: Mapping[str, Any]) -> str:
    """Return the metric that every domain of such a task defines."""
    return _USUAL[plan["kind"]]


def has_metric(metrics: Mapping[str, Any], metric: str) -> bool:
    return metric in metrics or (metric == "rmse" and "loss" in metrics)


def value_in(metrics: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric of some rows; a root mean squared error that was not recorded comes from the loss."""
    if metric == "rmse" and "rmse" not in metrics:
        loss = metrics.get("loss")
        return None if loss is None else rmse_from_loss(loss)
    value = metrics.get(metric)
    return None if value is None else float(value)


def undefined_domains(sweep: Sweep, rule: str, metric: str) -> list[str]:
    """Held-out domains that have results and in none of them this metric, as AUROC where there is one class only."""
    found: dict[str, bool] = {}
    for row in sweep.rows:
        chosen = row["selection"].get(rule)
        if chosen is not None:
            found[row["held_out"]] = found.get(row["held_out"], False) or has_metric(chosen, metric)
    return [domain for domain, has in found.items() if not has]


def check_rule(sweep: Sweep, rule: str) -> None:
    if rule not in sweep.plan["rules"]:
        raise UserError(f"this bench did not choose by '{rule}'; it has {', '.join(sweep.plan['rules'])}")


def metric_values(sweep: Sweep, rule: str, metric: str) -> Values:
    """A held-out metric per method and (held-out, seed). Not finite is NaN; a run without the metric has no key."""
    values: Values = {name: {} for name in sweep.plan["algorithms"]}
    for row in sweep.rows:
        chosen = row["selection"].get(rule)
        if chosen is not None and has_metric(chosen, metric):
            value = value_in(chosen, metric)
            values[row["algorithm"]][row["held_out"], row["seed"]] = math.nan if value is None else value
    return values


def source_values(sweep: Sweep, rule: str, metric: str, figures: str, domains: Collection[str]) -> Values:
    """The same on the sources' validation rows, of runs that hold out `domains`.

    `figures` is 'validation' or 'participating'.
    """
    values: Values = {name: {} for name in sweep.plan["algorithms"]}
    for row in sweep.rows:
        value = row["selection"].get(rule, {}).get(figures, {}).get(metric)
        if value is not None and row["held_out"] in domains:
            values[row["algorithm"]][row["held_out"], row["seed"]] = float(value)
    return values


def domain_summaries(values: dict[Key, float], domains: tuple[str, ...]) -> dict[str, Summary | None]:
    """A summary over seeds per held-out domain, None where there is no value."""
    by_domain: dict[str, list[float]] = {domain: [] for domain in domains}
    for (domain, _), value in sorted(values.items()):
        by_domain[domain].append(value)
    return {domain: summary(of) if of else None for domain, of in by_domain.items()}


def overall_summary(values: dict[Key, float], domains: tuple[str, ...]) -> Summary | None:
    """Over the domains' means where the bench has several domains, else over the seeds of the one."""
    if not values:
        return None
    if len(domains) == 1:
        return summary(values.values())
    return summary(s.mean for s in domain_summaries(values, domains).values() if s is not None)


def methods(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the method of each variant by label."""
    return {variant["label"]: variant["method"] for variant in plan["variants"]}


def row_noun(plan: Mapping[str, Any]) -> str:
    """Return what the rows of a table are: methods, or variants where one method stands there several times."""
    return "variant" if len(set(methods(plan).values())) < len(plan["variants"]) else "method"


def baseline_of(plan: Mapping[str, Any]) -> str | None:
    """Return the label of what differences are to; None where a single variant that is not FedAvg was run.

    Older plans name no baseline and get the default one.
    """
    of = methods(plan)
    if len(of) == 1 and BASELINE not in of.values():
        return None
    named: str | None = plan.get("baseline")
    return named if named in of else default_baseline(of)


def default_baseline(of: Mapping[str, str]) -> str:
    """Return the label to compare with, given methods by label: 'fedavg', else its first variant, else the first.

    A reference stands in for FedAvg only where there is nothing else.
    """
    having = [label for label, name in of.items() if name == BASELINE]
    if having:
        return BASELINE if BASELINE in having else having[0]
    return next((label for label, name in of.items() if not is_reference(name)), next(iter(of)))


def is_reference(name: str) -> bool:
    """Whether a method is a reference (pooled data, clients alone) and so not a result of federated learning."""
    return name in names() and method(name).family == "reference"
