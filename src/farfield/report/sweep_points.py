"""A sweep over settings read back: one entry per method and point, with what it costs to get there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from farfield.protocol.metrics import HIGHER_IS_BETTER
from farfield.protocol.statistics import Summary
from farfield.records import RecordsError
from farfield.records.setting_text import value_text
from farfield.records.sweep_folder import POINTS, is_sweep, read_sweep
from farfield.report.collect import Curve, Sweep, collect
from farfield.report.formats import MISSING, metric_label, metric_value, number, rule_label
from farfield.report.grid import Cell, Column, Grid
from farfield.report.metric_values import baseline_of, leading_metric, metric_values, overall_summary, usual_metric

#: Where nobody says what is to be reached: this share of the baseline's best validation figure.
REACH = 0.95


@dataclass(frozen=True)
class PointLine:
    """One variant at one point. `base` is the variant it was made from; `values` are the swept ones that it has."""

    base: str
    label: str
    values: Mapping[str, Any]
    overall: Summary | None
    #: Bytes both ways, and how many of them a run took to reach the threshold; None where a run never did.
    sent: float | None
    reached: float | None
    runs: int


@dataclass(frozen=True)
class SweepPoints:
    """All points of a sweep."""

    folder: Path
    axes: tuple[Mapping[str, Any], ...]
    metric: str
    kind: str
    rule: str
    #: The validation figure whose bytes are counted, and its value.
    reach_metric: str
    reach: float | None
    lines: tuple[PointLine, ...]
    rows: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    #: Points whose bench has not begun, by name.
    missing: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    task: str

    @property
    def unit(self) -> tuple[str, float]:
        """The unit in which bytes are shown, and how many bytes it has."""
        most = max((line.sent for line in self.lines if line.sent is not None), default=0.0)
        return ("GB", 1e9) if most >= 1e10 else ("MB", 1e6) if most >= 1e6 else ("kB", 1e3)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dict per variant and point."""
        return [
            {
                "method": line.base,
                **{axis["name"]: line.values.get(axis["name"]) for axis in self.axes},
                "metric": self.metric,
                "mean": line.overall.mean if line.overall else None,
                "low": line.overall.low if line.overall else None,
                "high": line.overall.high if line.overall else None,
                "bytes": line.sent,
                "bytes_to_reach": line.reached,
                "reach": self.reach,
                "runs": line.runs,
            }
            for line in self.lines
        ]

    def grid(self) -> Grid:
        """The table: a row per variant and point."""
        names = [axis["name"] for axis in self.axes]
        reach = MISSING if self.reach is None else metric_value(self.reach_metric, self.reach)
        columns = [Column("method", text=True), *(Column(name) for name in names), Column("mean", "± 95 %")]
        columns += [Column("sent", f"{self.unit[0]} per run"), Column(f"to reach {reach}", f"{self.unit[0]} per run")]
        what = metric_label(self.metric, self.kind)
        return Grid(
            title=f"{what} on held-out domains; rounds chosen by {rule_label(self.rule)}",
            columns=tuple(columns),
            rows=tuple(self._row(line, names) for line in self.lines),
            notes=tuple(self.notes()),
        )

    def notes(self) -> list[str]:
        """Return what a reader must know of the numbers, one sentence per note."""
        notes = ["mean: over held-out domains, each averaged over seeds; ± is a 95 % interval over domains."]
        if self.reach is not None:
            what = metric_label(self.reach_metric, self.kind)
            notes.append(
                f"to reach: bytes both ways, of training alone, until {what} on the sources' validation rows is "
                f"{metric_value(self.reach_metric, self.reach)}; {MISSING} where a run does not get there."
            )
        notes.append("sent: all bytes of a run both ways, validation included.")
        notes += [f"{name}: not begun." for name in self.missing]
        notes += [f"failed: {f['algorithm']}, {f['held_out']} held out: {f['error']}" for f in self.failures[:5]]
        return notes

    def _row(self, line: PointLine, names: Sequence[str]) -> tuple[Cell, ...]:
        cells = [Cell(line.base)]
        cells += [Cell(value_text(line.values[name]) if name in line.values else MISSING) for name in names]
        if line.overall is None:
            cells.append(Cell(MISSING, tone="missing"))
        else:
            half = None if line.overall.high is None else line.overall.high - line.overall.mean
            below = "" if half is None else f"±{metric_value(self.metric, half, like=(line.overall.mean,))}"
            cells.append(Cell(metric_value(self.metric, line.overall.mean), below))
        for value in (line.sent, line.reached):
            cells.append(Cell(MISSING if value is None else number(value / self.unit[1])))
        return tuple(cells)


def collect_points(folder: Path, purpose: str, metric: str | None = None) -> SweepPoints:
    """Read a sweep, finished or not. `purpose` goes into each bench's count of looks."""
    if not is_sweep(folder):
        raise RecordsError(f"there is no sweep in '{folder}'; give the folder that --out named")
    content = read_sweep(folder)
    found: list[tuple[dict[str, Any], Sweep]] = []
    missing, links = [], []
    for point in content["points"]:
        at = folder / POINTS / point["folder"]
        name = ", ".join(f"{key}={value_text(value)}" for key, value in point["values"].items()) or "all methods"
        if not (at / "bench.toml").exists():
            missing.append(name)
            continue
        found.append((point["values"], collect(at, purpose, metric)))
        links.append((name, f"{POINTS}/{point['folder']}/report.html"))
    if not found:
        raise RecordsError(f"no bench of the sweep in '{folder}' has begun; add --resume to go on")
    plan = found[0][1].plan
    leading, rule = leading_metric(plan), plan["rules"][0]
    curves = {
        (number, label): _curves(of, label) for number, (_, of) in enumerate(found) for label in content["variants"]
    }
    by = _reach_metric([curve for of in curves.values() for curve in of], leading, plan)
    reach = content.get("reach")
    if reach is None:
        reach = _default_reach(found, content["variants"], by)
    lines, rows = [], []
    for number_, (values, of) in enumerate(found):
        held_out = tuple(of.plan["held_out"])
        figures = metric_values(of, rule, leading)
        for label, made in content["variants"].items():
            if label not in figures:
                continue
            swept = {**values, **made["values"]}
            own = [row for row in of.rows if row["algorithm"] == label]
            lines.append(
                PointLine(
                    base=made["base"],
                    label=label,
                    values=swept,
                    overall=overall_summary(figures[label], held_out),
                    sent=fmean(row["bytes_up"] + row["bytes_down"] for row in own) if own else None,
                    reached=None if reach is None else _reached(curves[number_, label], by, reach),
                    runs=len(own),
                )
            )
            rows += [{**row, "base": made["base"], "sweep": swept} for row in own]
    failures = [failure for _, of in found for failure in of.failures]
    axes = tuple(content["axes"])
    return SweepPoints(
        folder, axes, leading, plan["kind"], rule, by, reach, tuple(lines), rows, failures, tuple(missing),
        tuple(links), plan["task"],
    )  # fmt: skip


def _curves(sweep: Sweep, label: str) -> list[Curve]:
    return [curve for curve in sweep.curves if curve.algorithm == label]


def validation_curve(curve: Curve, metric: str) -> list[tuple[float, float]]:
    """Return bytes sent and the mean validation figure over source domains, by evaluated round."""
    found = []
    for row in curve.rounds:
        if "validation" in row and "sent" in row:
            values = [of.get(metric) for of in row["validation"].values()]
            if values and all(value is not None and math.isfinite(value) for value in values):
                found.append((float(row["sent"]["up"] + row["sent"]["down"]), fmean(values)))
    return found


def _reach_metric(curves: Sequence[Curve], leading: str, plan: Mapping[str, Any]) -> str:
    """Return the leading metric if validation has it, else the usual one, else the loss."""
    for metric in (leading, usual_metric(plan), "loss"):
        if any(validation_curve(curve, metric) for curve in curves):
            return metric
    return "loss"


def _default_reach(
    found: Sequence[tuple[Mapping[str, Any], Sweep]], variants: Mapping[str, Any], metric: str
) -> float | None:
    """Return 95 % of the baseline's best validation figure (of a loss 105 %), at its best point."""
    best: list[float] = []
    for _, of in found:
        baseline = baseline_of(of.plan)
        base = baseline if baseline is None or baseline not in variants else variants[baseline]["base"]
        for label in (label for label, made in variants.items() if made["base"] == base):
            runs = [validation_curve(curve, metric) for curve in _curves(of, label)]
            if runs and all(runs):
                pick = max if HIGHER_IS_BETTER[metric] else min
                best.append(fmean(pick(value for _, value in run) for run in runs))
    if not best:
        return None
    value = REACH * max(best) if HIGHER_IS_BETTER[metric] else min(best) * (2 - REACH)
    return float(f"{value:.3g}")


def _reached(curves: Sequence[Curve], metric: str, reach: float) -> float | None:
    """Return the mean bytes over runs until the figure is reached; None where one of them never gets there."""
    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
    firsts = [
        next((sent for sent, value in validation_curve(curve, metric) if sign * value >= sign * reach), None)
        for curve in curves
    ]
    got = [first for first in firsts if first is not None]
    return fmean(got) if got and len(got) == len(firsts) else None
