"""What a bench found, as tables: results by held-out domain, all metrics, fairness, cost.

Pure functions from a `Sweep` to data; each result can be had as dicts, for a terminal, and as Markdown.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from statistics import fmean, pvariance
from typing import Any

from farfield.protocol.against_prior import AgainstPrior
from farfield.protocol.metrics import HIGHER_IS_BETTER, METRICS, SHARES, fairness
from farfield.protocol.statistics import Difference, compare, compare_on_these_domains
from farfield.records.tuning_trials import tuned_words
from farfield.report.collect import Sweep
from farfield.report.formats import (
    MISSING,
    arrow,
    is_percent,
    listed,
    metric_label,
    metric_value,
    number,
    rule_label,
)
from farfield.report.grid import Cell, Column, Grid, Table
from farfield.report.lost_replies import runs_with_losses
from farfield.report.metric_values import (
    Key,
    baseline_of,
    check_rule,
    domain_summaries,
    is_reference,
    leading_metric,
    methods,
    metric_values,
    overall_summary,
    row_noun,
    source_values,
    undefined_domains,
    usual_metric,
)
from farfield.report.prior import PRIOR, against_prior, prior_values
from farfield.report.privacy_notes import privacy_notes
from farfield.report.result_table import ResultLine, ResultTable

__all__ = ["ResultLine", "ResultTable", "Table", "cost_table", "fairness_table", "metric_table", "result_table"]

#: Columns of the cost table: key of the row, heading, unit, and what a value is divided by.
_COSTS = (
    ("local_steps", "local steps", "", 1.0),
    ("samples", "samples", "", 1.0),
    ("bytes_up", "up", "MB", 1e6),
    ("bytes_down", "down", "MB", 1e6),
    ("seconds", "time", "s", 1.0),
    ("server_seconds", "server time", "s", 1.0),
    ("peak_memory_mb", "peak memory", "MiB", 1.0),
)


def result_table(sweep: Sweep, rule: str, metric: str | None = None) -> ResultTable:
    """A metric per method and held-out domain under `rule`, and paired differences to FedAvg.

    The metric is the plan's unless another is named. Domains where it is not defined are left out, with a note; where
    it is defined nowhere, accuracy (the root mean squared error of a regression) takes its place.
    """
    plan = sweep.plan
    check_rule(sweep, rule)
    metric, held_out, remarks = _leading(sweep, rule, metric)
    values = metric_values(sweep, rule, metric)
    algorithms = list(plan["algorithms"])
    method_of, baseline = methods(plan), baseline_of(plan)
    of_baseline = values[baseline] if baseline is not None else {}
    comparable = {a: v for a, v in values.items() if a != baseline and v.keys() & of_baseline.keys()}
    # References are no candidates: they must not weaken what is said of the methods that are.
    differences: dict[str, Difference] = {}
    on_these: dict[str, Difference] = {}
    for reference in (False, True):
        family = {a: v for a, v in comparable.items() if is_reference(method_of[a]) is reference}
        if family:
            differences |= compare(family, of_baseline, HIGHER_IS_BETTER[metric], metric)
            on_these |= compare_on_these_domains(family, of_baseline, HIGHER_IS_BETTER[metric], metric)
    whole = len(held_out) * len(plan["seeds"])
    for name, difference in differences.items():
        # Runs that failed are seldom the easy ones: no verdict from the survivors alone.
        if len(values[name]) < whole or len(of_baseline) < whole:
            differences[name] = replace(difference, verdict="too few to say")
            on_these[name] = replace(on_these[name], verdict="too few to say")
    validation, participating = (
        source_values(sweep, rule, metric, of, held_out) for of in ("validation", "participating")
    )
    own = {variant["label"]: variant["settings"] for variant in plan["variants"]}
    prior = prior_values(sweep, rule, metric, held_out)
    over_prior: dict[str, AgainstPrior] = {}
    for reference in (False, True):
        family = {a: v for a, v in values.items() if method_of[a] != PRIOR and is_reference(method_of[a]) is reference}
        over_prior |= against_prior(family, prior, metric)
    for name, against in over_prior.items():
        if len(values[name]) < whole:
            over_prior[name] = replace(against, verdict="too few to say")
    lost = Counter(row["algorithm"] for row in runs_with_losses(sweep))
    lines = []
    for name in algorithms:
        by_domain = domain_summaries(values[name], held_out)
        means = {d: s.mean for d, s in by_domain.items() if s is not None}
        worst_domain = _worst(means, HIGHER_IS_BETTER[metric])
        failed = sum(f["algorithm"] == name and f["held_out"] in held_out for f in sweep.failures)
        runs = len(values[name])
        lines.append(
            ResultLine(
                algorithm=name,
                domains=by_domain,
                overall=overall_summary(values[name], held_out),
                worst=means[worst_domain] if worst_domain is not None else None,
                worst_domain=worst_domain,
                difference=differences.get(name),
                on_these=on_these.get(name),
                domain_differences=_domain_differences(values[name], of_baseline) if name != baseline else {},
                runs=runs,
                failed=failed,
                missing=len(held_out) * len(plan["seeds"]) - runs - failed,
                reference=is_reference(method_of[name]),
                method=method_of[name],
                settings=own[name],
                chosen=tuned_words(plan, name),
                over_prior=over_prior.get(name),
                validation=overall_summary(validation[name], held_out),
                participating=overall_summary(participating[name], held_out),
                lost=lost[name],
            )
        )
    return ResultTable(
        rule=rule,
        kind=plan["kind"],
        metric=metric,
        domains=held_out,
        seeds=tuple(plan["seeds"]),
        lines=tuple(lines),
        unit="domains" if len(held_out) > 1 else "seeds",
        baseline=baseline,
        remarks=(*remarks, *privacy_notes(sweep)),
        prior=of_prior.mean if (of_prior := overall_summary(prior, held_out)) is not None else None,
        left_out=plan.get("left_out", {}),
    )


def _leading(sweep: Sweep, rule: str, asked: str | None) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The metric to show, the domains to show it on, and what must be said of both."""
    held_out, usual = tuple(sweep.plan["held_out"]), usual_metric(sweep.plan)
    asked = asked or leading_metric(sweep.plan)
    label = metric_label(asked, sweep.plan["kind"])
    without = undefined_domains(sweep, rule, asked)
    domains = tuple(domain for domain in held_out if domain not in without)
    if not domains and asked != usual:
        return usual, held_out, (f"{label} is defined on no held-out domain, so {usual} stands here.",)
    if not without or not domains:
        return asked, held_out, ()
    why = " (one class only)" if asked in ("auroc", "average_precision") else ""
    return asked, domains, (f"{label} is not defined on {listed(without)}{why}; the table leaves that out.",)


def metric_table(sweep: Sweep, rule: str) -> Table:
    """Every metric of the held-out domains under `rule`, each the mean over domains of the mean over seeds.

    A metric that a domain cannot define (AUROC with one class only) is averaged over the domains that can, and the
    cell says how many.
    """
    check_rule(sweep, rule)
    plan = sweep.plan
    held_out = tuple(plan["held_out"])
    by_metric = {m: metric_values(sweep, rule, m) for m in METRICS[plan["kind"]]}
    by_metric = {m: values for m, values in by_metric.items() if any(values.values())}
    records, rows = [], []
    for name in plan["algorithms"]:
        record: dict[str, Any] = {"algorithm": name, "rule": rule_label(rule)}
        cells = [Cell(name)]
        most = max((len({d for d, _ in values[name]}) for values in by_metric.values()), default=0)
        for metric, values in by_metric.items():
            overall = overall_summary(values[name], held_out)
            mean = overall.mean if overall is not None else None
            have = len({domain for domain, _ in values[name]})
            partial = 0 < have < most
            record |= {metric: mean, f"{metric}_domains": have}
            cells.append(
                Cell(
                    metric_value(metric, mean),
                    f"{have} of {most} domains" if partial else "",
                    "missing" if mean is None or not math.isfinite(mean) else "",
                )
            )
        records.append(record)
        rows.append(tuple(cells))
    columns = [Column(row_noun(plan), text=True)]
    for metric in by_metric:
        columns.append(
            Column(f"{metric_label(metric, plan['kind'])} {arrow(metric)}", "%" if is_percent(metric) else "")
        )
    return Table(
        tuple(records),
        Grid(
            title=f"All metrics on held-out domains; rounds chosen by {rule_label(rule)}",
            columns=tuple(columns),
            rows=tuple(rows),
            notes=(
                "Means over held-out domains, each averaged over its seeds. ↑ higher is better, ↓ lower is better.",
            ),
        ),
    )


def fairness_table(sweep: Sweep, rule: str, metric: str | None = None) -> Table:
    """How evenly a method does over the held-out domains: variance and entropy (FedILC, table 3), and the gap.

    Entropy is of accuracies divided by their sum; it says nothing of losses, so a regression has none.
    """
    results = result_table(sweep, rule, metric)
    metric, shares = results.metric, results.metric in SHARES
    records, rows = [], []
    for line in results.lines:
        means = [s.mean for s in line.domains.values() if s is not None]
        usable = len(means) > 1 and all(math.isfinite(m) for m in means)
        spread = _spread(means, shares) if usable else {}
        gap = max(means) - min(means) if usable else None
        records.append(
            {
                "algorithm": line.algorithm,
                "rule": rule_label(rule),
                "domains": len(means),
                "variance": spread.get("variance"),
                "entropy": spread.get("entropy"),
                "gap": gap,
                "worst": line.worst,
                "worst_domain": line.worst_domain,
            }
        )
        variance, entropy = spread.get("variance"), spread.get("entropy")
        cells = [
            Cell(line.algorithm),
            Cell(number(1000 * variance if variance is not None and shares else variance)),
            Cell(f"{10 * entropy:.3f}" if entropy is not None else MISSING),
            Cell(metric_value(metric, gap)),
            Cell(metric_value(metric, line.worst), f"on {line.worst_domain}" if line.worst_domain is not None else ""),
        ]
        rows.append(tuple(cells if shares else [*cells[:2], *cells[3:]]))
    label = metric_label(metric, results.kind)
    unit = "%" if is_percent(metric) else ""
    columns = [
        Column(results.noun, text=True),
        Column("variance ↓", "× 1000" if shares else ""),
        Column("entropy ↑", "× 10"),
        Column("best minus worst ↓", "points" if unit else ""),
        Column("worst domain", unit),
    ]
    notes = [f"Of the mean {label} on each of {len(results.domains)} held-out domains."]
    if shares and len(results.domains) > 1:
        most = 10 * math.log(len(results.domains))
        notes.append(f"Scaled as in FedILC's table 3; the same {label} on all domains gives entropy {most:.3f}.")
    if len(results.domains) == 1:
        notes = ["One held-out domain: there is nothing to be even over."]
    return Table(
        tuple(records),
        Grid(
            title=f"Fairness over held-out domains; rounds chosen by {rule_label(rule)}",
            columns=tuple(columns if shares else [*columns[:2], *columns[3:]]),
            rows=tuple(rows),
            notes=tuple(notes),
        ),
    )


def cost_table(sweep: Sweep) -> Table:
    """What a run cost, as the mean over the finished runs of each method: work, traffic by phase, time, memory."""
    records, rows = [], []
    for name in sweep.plan["algorithms"]:
        of = [row for row in sweep.runs if row["algorithm"] == name]
        record: dict[str, Any] = {"algorithm": name, "runs": len(of)}
        cells = [Cell(name)]
        for key, _, unit, scale in _COSTS:
            known = [row[key] / scale for row in of if row.get(key) is not None]
            mean = fmean(known) if known else None
            column = key.replace("bytes", "mb") if unit == "MB" else key
            record[column] = mean
            phases = _by_phase(of, f"{key}_by_phase", scale)
            record |= {f"{column}[{phase}]": value for phase, value in phases.items()}
            text = f"{mean:,.0f}" if mean is not None and not unit else number(mean)
            cells.append(Cell(text, ", ".join(f"{p} {number(v)}" for p, v in phases.items())))
        records.append(record)
        rows.append(tuple(cells))
    noun = row_noun(sweep.plan)
    columns = [Column(noun, text=True), *(Column(heading, unit) for _, heading, unit, _ in _COSTS)]
    return Table(
        tuple(records),
        Grid(
            title="Cost of a run",
            columns=tuple(columns),
            rows=tuple(rows),
            notes=(
                f"Means over a {noun}'s finished runs, all clients together. Traffic by phase: 'evaluate' is the "
                "validation that the selection rules need. Times are of this machine, with other runs beside.",
            ),
        ),
    )


def _spread(means: list[float], shares: bool) -> dict[str, float]:
    return fairness(means) if shares else {"variance": pvariance(means)}


def _by_phase(rows: list[dict[str, Any]], key: str, scale: float) -> dict[str, float]:
    phases = dict.fromkeys(phase for row in rows for phase in row.get(key, {}))
    return {phase: fmean(row.get(key, {}).get(phase, 0) / scale for row in rows) for phase in phases}


def _domain_differences(values: dict[Key, float], baseline: dict[Key, float]) -> dict[str, float]:
    by_domain: dict[str, list[float]] = {}
    for key in sorted(values.keys() & baseline.keys()):
        by_domain.setdefault(key[0], []).append(values[key] - baseline[key])
    return {domain: fmean(of) for domain, of in by_domain.items()}


def _worst(means: dict[str, float], higher_is_better: bool) -> str | None:
    """The domain with the worst mean; one that diverged is worst of all."""
    sign = 1.0 if higher_is_better else -1.0
    return min(means, key=lambda d: sign * means[d] if math.isfinite(means[d]) else -math.inf, default=None)
