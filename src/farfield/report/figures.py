"""The figures of a report by name: drawn once here, for the page, and for files as SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from farfield.protocol.metrics import METRICS
from farfield.protocol.new_site import Refusal
from farfield.report.collect import Sweep
from farfield.report.curves import (
    all_validation_curves,
    cost_curves,
    difference_intervals,
    held_out_curves,
    prior_intervals,
)
from farfield.report.formats import is_percent, metric_label, with_unit
from farfield.report.metric_values import has_metric
from farfield.report.new_site import estimate
from farfield.report.plots import Drawing, Range, Series, curves, differences
from farfield.report.result_table import ResultLine, ResultTable
from farfield.report.site_plots import new_site_plot

#: Decimals of values in percent and of scores around one, as tables have them.
_DECIMALS = {"auroc": 3, "average_precision": 3, "ece": 3, "brier": 3, "r2": 3}


@dataclass(frozen=True)
class Figure:
    """A plot with what a reader needs to read it. Without a plot, `caption` says why there is none."""

    name: str
    caption: str
    svg: str | None = None
    metric: str = ""
    #: What the page's script says when a reader points at a curve.
    hover: dict[str, Any] | None = None


def available_metrics(sweep: Sweep) -> list[str]:
    """The metrics that at least one held-out result has, in the order of tables."""
    seen: set[str] = set()
    for row in sweep.rows:
        for chosen in row["selection"].values():
            seen.update(m for m in METRICS[sweep.plan["kind"]] if m not in seen and has_metric(chosen, m))
    return [m for m in METRICS[sweep.plan["kind"]] if m in seen]


def validated_metrics(sweep: Sweep) -> list[str]:
    """The metrics that source domains' validation rows have in some round."""
    seen: set[str] = set()
    for curve in sweep.curves:
        first: dict[str, Any] = next((row["validation"] for row in curve.rounds if row.get("validation")), {})
        seen.update(m for m in METRICS[sweep.plan["kind"]] for of in first.values() if has_metric(of, m))
    return [m for m in METRICS[sweep.plan["kind"]] if m in seen]


def curve_figures(sweep: Sweep, metrics: Iterable[str]) -> list[Figure]:
    """Held-out domains and source validation by round, two figures per metric that both have."""
    kind, validated = sweep.plan["kind"], validated_metrics(sweep)
    metrics = list(metrics)
    of_sources = all_validation_curves(sweep, [metric for metric in metrics if metric in validated])
    figures = []
    for metric in metrics:
        held_out, sources = held_out_curves(sweep, metric), of_sources.get(metric, [])
        # A regression's validation may be on the scale of training: never the same axis.
        shared = Range.of([held_out, sources]) if kind == "classification" else None
        for where, name, series in (
            ("held-out domains", "held-out", held_out),
            ("source validation", "validation", sources),
        ):
            if name == "validation" and metric not in validated:
                continue
            axis = shared or Range.of([series])
            if axis is None or not series:
                why = f"No round has a finite value on {where} in every run, so there is no curve."
                figures.append(Figure(f"{name}-{metric}", why, metric=metric))
                continue
            figures.append(_curve_figure(series, axis, f"{name}-{metric}", metric, where, kind))
    return figures


def _curve_figure(series: Sequence[Series], axis: Range, name: str, metric: str, where: str, kind: str) -> Figure:
    label = _with_percent(metric, kind)
    drawing = curves(
        series,
        axis,
        title=f"{label} on {where} by round",
        x_label="round",
        y_label=f"{label}, {where}",
        metric=metric,
        identity=name,
    )
    banded = any(s.band for s in series)
    band = "band: ± one standard deviation over seeds" if banded else "one seed: no band"
    return Figure(
        name,
        f"{where.capitalize()}: mean over runs; {band}.",
        drawing.svg,
        metric,
        _hover(drawing, series, metric, "round"),
    )


def cost_figures(sweep: Sweep, metric: str) -> list[Figure]:
    """The metric against what was sent and against local steps."""
    label = _with_percent(metric, sweep.plan["kind"])
    figures = []
    for name, key, unit, x_label in (
        ("against-bytes", "bytes_up+bytes_down", 1e6, "MB sent, both ways"),
        ("against-steps", "local_steps", 1.0, "local steps, all clients"),
    ):
        series = cost_curves(sweep, metric, key, unit)
        axis = Range.of([series])
        if axis is None:
            figures.append(Figure(name, f"No run says its {x_label}, so there is no curve.", metric=metric))
            continue
        drawing = curves(
            series,
            axis,
            title=f"{label} on held-out domains against {x_label}",
            x_label=x_label,
            y_label=f"{label}, held-out domains",
            metric=metric,
            identity=name,
        )
        caption = f"Held-out domains against {x_label}. A run's cost is spread evenly over its rounds."
        figures.append(Figure(name, caption, drawing.svg, metric, _hover(drawing, series, metric, x_label)))
    return figures


def difference_figure(table: ResultTable) -> Figure:
    """Differences to the baseline, one line per method."""
    rows = difference_intervals(table)
    if table.baseline is None:
        return Figure("differences", "FedAvg was not run, so there is nothing to take differences to.")
    if not rows:
        why = f"No {table.noun} has a finite difference to {table.baseline_name}, so there is none to show."
        return Figure("differences", why)
    label = metric_label(table.metric, table.kind)
    unit = ", points" if is_percent(table.metric) else ""
    side = "Right" if table.higher_is_better else "Left"
    svg = differences(
        rows,
        title=f"Differences in {label} to {table.baseline_name}",
        x_label=f"{label} minus {table.baseline_name}'s{unit}",
        metric=table.metric,
        identity="differences",
    )
    caption = (
        f"{side} of zero is better than {table.baseline_name}. Dot and line: mean and 95 % interval; a filled "
        "dot is beyond chance after Holm's correction."
    )
    if any(row.marks for row in rows):
        caption += " Small dots: each held-out domain."
    return Figure("differences", caption, svg, table.metric)


def prior_figure(table: ResultTable) -> Figure | None:
    """Every method against `prior`; None where nobody knows what `prior` scores."""
    rows = prior_intervals(table)
    if table.prior is None or not rows:
        return None
    label = metric_label(table.metric, table.kind)
    unit = ", points" if is_percent(table.metric) else ""
    svg = differences(
        rows,
        title=f"Differences in {label} to prior",
        x_label=f"{label} minus prior's{unit}",
        metric=table.metric,
        identity="against-prior",
    )
    side = "Right" if table.higher_is_better else "Left"
    caption = (
        f"{side} of zero is better than prior, which scores {with_unit(table.metric, table.prior)}. A filled dot is "
        "better beyond chance; the line reaches from the mean to the bound that this verdict goes by."
    )
    return Figure("against-prior", caption, svg, table.metric)


def new_site_figure(sweep: Sweep, table: ResultTable, line: ResultLine | None) -> Figure | None:
    """What a new site may expect; without an estimate the reason. None where there is nothing to estimate from."""
    if line is None or not line.complete:
        return None
    found = estimate(sweep, table, line)
    if isinstance(found, Refusal):
        return Figure("new-site", found.sentence[:1].upper() + found.sentence[1:])
    svg = new_site_plot(
        {domain: of.mean for domain, of in line.domains.items() if of is not None},
        (found.mean, found.mean_low, found.mean_high),
        (found.low, found.high),
        metric=table.metric,
        title=f"What a new site may expect from {line.algorithm}",
        x_label=_with_percent(table.metric, table.kind),
        identity="new-site",
        prior=table.prior,
    )
    caption = (
        f"{line.algorithm}: each dot is a held-out domain, averaged over seeds. 'mean of these' has the 95 % interval "
        "of the mean. The shaded range is the prediction interval for one new site: it holds "
        f"{found.coverage} of the time, if that site is like these."
    )
    return Figure("new-site", caption, svg, table.metric)


def _with_percent(metric: str, kind: str) -> str:
    return metric_label(metric, kind) + (", %" if is_percent(metric) else "")


def _hover(drawing: Drawing, series: Sequence[Series], metric: str, unit: str) -> dict[str, Any]:
    """The values of a figure, rounded as they are shown, and where they lie in the drawing."""
    values = [abs(y) for s in series for _, y in s.points if math.isfinite(y)]
    largest = max(values, default=1.0) or 1.0
    decimals = 1 if is_percent(metric) else _DECIMALS.get(metric, max(0, 3 - math.floor(math.log10(largest))))
    return {
        "box": [round(at, 1) for at in drawing.box],
        "x": list(drawing.x),
        "y": list(drawing.y),
        "log": drawing.log,
        "decimals": decimals,
        "unit": unit,
        "series": [
            {
                "name": s.name,
                "style": s.style,
                "x": [float(f"{x:.5g}") for x, _ in s.points],
                "y": [round(y, decimals) for _, y in s.points],
            }
            for s in series
        ],
    }
