"""A sweep's curves, averaged: held-out metric and source validation of every method, by round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from farfield.report.collect import Curve, Sweep
from farfield.report.metric_values import baseline_of, leading_metric, usual_metric, value_in
from farfield.report.plots import Interval, Series, plot_value
from farfield.report.result_table import ResultTable

#: What one run shows at each evaluated round.
Reading = Callable[[Curve, str], dict[int, float]]


def held_out_curves(sweep: Sweep, metric: str | None = None) -> list[Series]:
    """A metric (the usual one if none is named) on held-out domains, by round."""
    return _series(sweep, _held_out, metric)


def validation_curves(sweep: Sweep, metric: str | None = None) -> list[Series]:
    """A metric on the source domains' validation data, every domain counting the same, by round."""
    asked = metric or leading_metric(sweep.plan)
    return all_validation_curves(sweep, [asked])[asked]


def all_validation_curves(sweep: Sweep, metrics: Sequence[str]) -> dict[str, list[Series]]:
    """The same for several metrics, in one pass over the rows."""
    read = {id(curve): _validations(curve, metrics) for curve in sweep.curves}
    return {metric: _series(sweep, lambda curve, of: read[id(curve)][of], metric) for metric in metrics}


def difference_intervals(table: ResultTable) -> list[Interval]:
    """The paired differences of a result table in plot units; methods without a finite one are left out."""
    return [
        Interval(
            line.algorithm,
            plot_value(table.metric, line.difference.mean),
            None if line.difference.low is None else plot_value(table.metric, line.difference.low),
            None if line.difference.high is None else plot_value(table.metric, line.difference.high),
            tuple((d, plot_value(table.metric, v)) for d, v in line.domain_differences.items())
            if len(table.domains) > 1
            else (),
            line.difference.verdict in ("better", "worse"),
        )
        for line in table.lines
        if line.difference is not None and math.isfinite(line.difference.mean)
    ]


def prior_intervals(table: ResultTable) -> list[Interval]:
    """The differences of a result table's methods to `prior` in plot units, each with the bound of its test."""
    rows = []
    for line in table.lines:
        of = line.over_prior
        if of is None or not math.isfinite(of.mean):
            continue
        mean = plot_value(table.metric, of.mean)
        bound = mean if of.bound is None else plot_value(table.metric, of.bound)
        low, high = (None, None) if of.bound is None else (min(mean, bound), max(mean, bound))
        rows.append(Interval(line.algorithm, mean, low, high, (), of.better))
    return rows


def styles(algorithms: list[str], baseline: str | None) -> dict[str, int]:
    """A fixed style per variant: the baseline has its own, whatever its place in the plan."""
    others = [name for name in algorithms if name != baseline]
    return {**({} if baseline is None else {baseline: 0}), **{name: i + 1 for i, name in enumerate(others)}}


def cost_curves(sweep: Sweep, metric: str, key: str, unit: float) -> list[Series]:
    """A metric on held-out domains against what was spent until then: `key` of a run's result, divided by `unit`.

    Records hold a run's cost as a whole. It is spread evenly over the rounds, which is exact where every round has as
    many clients. Methods whose runs do not say the cost are left out.
    """
    spent: dict[str, list[float]] = {}
    for row in sweep.runs:
        total = sum(row[part] for part in key.split("+")) if all(part in row for part in key.split("+")) else None
        if total:
            spent.setdefault(row["algorithm"], []).append(total / unit / row["rounds"])
    result = []
    for series in held_out_curves(sweep, metric):
        if series.name in spent:
            # Undo the common width of the rounds, then price each round.
            price = fmean(spent[series.name]) * _rounds_of(sweep, series.name) / sweep.plan["rounds"]
            result.append(replace(series, points=tuple((r * price, y) for r, y in series.points), band=()))
    return result


def _rounds_of(sweep: Sweep, name: str) -> int:
    return int(sweep.plan.get("rounds_of", {}).get(name, sweep.plan["rounds"]))


def _series(sweep: Sweep, reading: Reading, asked: str | None) -> list[Series]:
    usual, metric = usual_metric(sweep.plan), asked or leading_metric(sweep.plan)
    values = [(c, reading(c, metric)) for c in sweep.curves]
    # A domain may not define another metric at all (AUROC with one class only), and then no method has it there.
    defined = {c.held_out for c, of in values if metric == usual or of}
    style = styles(sweep.plan["algorithms"], baseline_of(sweep.plan))
    result = []
    for name in sweep.plan["algorithms"]:
        runs = {(c.held_out, c.seed): of for c, of in values if c.algorithm == name and c.held_out in defined}
        if runs:
            # A method that makes many more rounds at equal local steps is drawn over the same width.
            result.append(_average(name, style[name], runs, metric, sweep.plan["rounds"] / _rounds_of(sweep, name)))
    return [s for s in result if s.points]


def _average(name: str, style: int, runs: dict[tuple[str, int], dict[int, float]], metric: str, scale: float) -> Series:
    """Mean over domains of the mean over seeds, and the standard deviation over seeds of the mean over domains.

    A round counts where every run has a finite value: a mean that loses a hard domain on the way would rise by that.
    Seeds that lack a domain are left out of the spread for the same reason.
    """
    domains = sorted({domain for domain, _ in runs})
    rounds = sorted(set.intersection(*(set(run) for run in runs.values())))
    table = {key: np.array([run[r] for r in rounds]) for key, run in runs.items()}
    by_domain = [np.mean([of for (domain, _), of in table.items() if domain == name], axis=0) for name in domains]
    mean = np.mean(by_domain, axis=0)
    points = tuple((r * scale, plot_value(metric, float(y))) for r, y in zip(rounds, mean, strict=True))
    seeds = sorted({seed for _, seed in runs})
    whole = [seed for seed in seeds if all((domain, seed) in runs for domain in domains)]
    if len(whole) < 2:
        return Series(name, style, points)
    spread = np.std([np.mean([table[d, seed] for d in domains], axis=0) for seed in whole], axis=0, ddof=1)
    band = tuple(
        (r * scale, plot_value(metric, float(y - half)), plot_value(metric, float(y + half)))
        for r, y, half in zip(rounds, mean, spread, strict=True)
    )
    return Series(name, style, points, band)


def _held_out(curve: Curve, metric: str) -> dict[int, float]:
    if metric == "rmse":  # older records have its square alone
        return _finite({r: value_in(metrics, metric) for r, metrics in curve.target})
    return _finite({r: metrics.get(metric) for r, metrics in curve.target})


def _validations(curve: Curve, metrics: Sequence[str]) -> dict[str, dict[int, float]]:
    """The mean over source domains of each metric by round; a round where a domain lacks it has no mean."""
    found: dict[str, dict[int, float]] = {metric: {} for metric in metrics}
    for row in curve.rounds:
        domains = row.get("validation")
        if not domains:
            continue
        for metric in metrics:
            total = 0.0
            for of in domains.values():
                value = value_in(of, metric) if metric == "rmse" else of.get(metric)
                total = math.nan if value is None else total + value
            if math.isfinite(total):
                found[metric][row["round"]] = total / len(domains)
    return found


def _finite(values: dict[int, float | None]) -> dict[int, float]:
    return {r: v for r, v in values.items() if v is not None and math.isfinite(v)}
