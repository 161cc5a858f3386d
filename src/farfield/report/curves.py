"""A sweep's curves, averaged: held-out metric and source validation of every method, by round."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, stdev

from farfield.report.collect import Curve, Sweep
from farfield.report.metric_values import baseline_of
from farfield.report.plots import Interval, Series, plot_value
from farfield.report.result_table import ResultTable

#: What one run shows at each evaluated round.
Reading = Callable[[Curve, str], dict[int, float]]


#: What clients measure on their validation rows.
VALIDATED = ("accuracy", "balanced_accuracy", "auroc", "loss", "balanced_loss")


def held_out_curves(sweep: Sweep, metric: str | None = None) -> list[Series]:
    """A metric (the usual one if none is named) on held-out domains, by round."""
    return _series(sweep, _held_out, metric)


def validation_curves(sweep: Sweep, metric: str | None = None) -> list[Series]:
    """A metric on the source domains' validation data, every domain counting the same, by round."""
    return _series(sweep, _validation, metric)


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


def styles(algorithms: list[str], baseline: str | None) -> dict[str, int]:
    """A fixed style per variant: the baseline has its own, whatever its place in the plan."""
    others = [name for name in algorithms if name != baseline]
    return {**({} if baseline is None else {baseline: 0}), **{name: i + 1 for i, name in enumerate(others)}}


def _series(sweep: Sweep, reading: Reading, asked: str | None) -> list[Series]:
    metric = asked or sweep.plan["metric"]
    # A domain may not define a metric at all (AUROC with one class only), and then no method has it there.
    defined = {c.held_out for c in sweep.curves if reading(c, metric)}
    style = styles(sweep.plan["algorithms"], baseline_of(sweep.plan))
    result = []
    for name in sweep.plan["algorithms"]:
        of = [c for c in sweep.curves if c.algorithm == name and c.held_out in defined]
        runs = {(c.held_out, c.seed): reading(c, metric) for c in of}
        if runs:
            # A method that makes many more rounds at equal local steps is drawn over the same width.
            scale = sweep.plan["rounds"] / sweep.plan.get("rounds_of", {}).get(name, sweep.plan["rounds"])
            result.append(_average(name, style[name], runs, metric, scale))
    return [s for s in result if s.points]


def _average(name: str, style: int, runs: dict[tuple[str, int], dict[int, float]], metric: str, scale: float) -> Series:
    """Mean over domains of the mean over seeds, and the standard deviation over seeds of the mean over domains.

    A round counts where every run has a finite value: a mean that loses a hard domain on the way would rise by that.
    Seeds that lack a domain are left out of the spread for the same reason.
    """
    domains = sorted({domain for domain, _ in runs})
    seeds = sorted({seed for _, seed in runs})
    whole = [seed for seed in seeds if all((domain, seed) in runs for domain in domains)]
    rounds = sorted(set.intersection(*(set(run) for run in runs.values())))
    points, band = [], []
    for r in rounds:
        mean = fmean(fmean(run[r] for key, run in runs.items() if key[0] == domain) for domain in domains)
        points.append((r * scale, plot_value(metric, mean)))
        if len(whole) > 1:
            spread = stdev(fmean(runs[domain, seed][r] for domain in domains) for seed in whole)
            band.append((r * scale, plot_value(metric, mean - spread), plot_value(metric, mean + spread)))
    return Series(name, style, tuple(points), tuple(band))


def _held_out(curve: Curve, metric: str) -> dict[int, float]:
    return _finite({r: metrics.get(metric) for r, metrics in curve.target})


def _validation(curve: Curve, metric: str) -> dict[int, float]:
    by_round: dict[int, float | None] = {}
    for row in curve.rounds:
        values = [domain.get(metric) for domain in row.get("validation", {}).values()]
        by_round[row["round"]] = fmean(values) if values and None not in values else None
    return _finite(by_round)


def _finite(values: dict[int, float | None]) -> dict[int, float]:
    return {r: v for r, v in values.items() if v is not None and math.isfinite(v)}
