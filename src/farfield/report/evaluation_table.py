"""A model measured at new sites, as a table: one line per domain, one column per metric, and how sure the first is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from farfield.protocol.metrics import METRICS
from farfield.report.formats import arrow, interval, is_percent, metric_label, metric_value
from farfield.report.grid import Cell, Column, Grid
from farfield.report.grid import Table as EvaluationTable

__all__ = ["EvaluationTable", "Measured", "evaluation_table"]


@dataclass(frozen=True)
class Measured:
    """The figures of some rows. `interval` is of the accuracy (Wilson), or of a regression's loss (bootstrap)."""

    name: str
    rows: int
    metrics: Mapping[str, float]
    interval: tuple[float, float] | None = None
    #: Rows of each class, and how many of them the model got right.
    counts: tuple[int, ...] = ()
    hits: tuple[int, ...] = ()
    #: What a validation report says of a site (`protocol.site_figures`).
    site: Mapping[str, Any] | None = None

    def to_json(self, classes: Sequence[str]) -> dict[str, Any]:
        first = "accuracy" if classes else "loss"
        by_class = zip(classes, self.counts, self.hits, strict=True) if classes else ()
        return {
            "name": self.name,
            "rows": self.rows,
            "metrics": {name: value if isfinite(value) else None for name, value in self.metrics.items()},
            f"{first}_95": None if self.interval is None else list(self.interval),
            "site": self.site,
            "by_class": {
                name: {"rows": rows, "recall": right / rows if rows else None} for name, rows, right in by_class
            },
        }


def evaluation_table(
    kind: str, overall: Measured, domains: Sequence[Measured], classes: Sequence[str] = ()
) -> EvaluationTable:
    """All metrics of every domain and of all rows together; a dash where a metric is not defined."""
    lines = [*domains, overall]
    first = "loss" if kind == "regression" else "accuracy"
    metrics = [m for m in METRICS[kind] if any(m in line.metrics for line in lines)]
    columns = [Column("domain", text=True), Column("rows")]
    columns += [
        Column(f"{metric_label(m, kind)} {arrow(m)}", ", ".join([*["%"] * is_percent(m), *["[95 %]"] * (m == first)]))
        for m in metrics
    ]
    rows, records = [], []
    for line in lines:
        cells = [Cell(line.name), Cell(f"{line.rows:,}")]
        for metric in metrics:
            value = line.metrics.get(metric)
            low, high = line.interval if metric == first and line.interval is not None else (None, None)
            detail = "" if value is None else interval(metric, low, high, value)
            cells.append(Cell(metric_value(metric, value), detail, "missing" if value is None else ""))
        rows.append(tuple(cells))
        low, high = line.interval if line.interval is not None else (None, None)
        records.append({"domain": line.name, "rows": line.rows, **line.metrics, "low": low, "high": high})
    way = "Wilson's" if kind == "classification" else "a bootstrap"
    notes = [f"[95 %]: {way} interval over rows. It says how other rows of the same sites would do, not other sites."]
    if len(classes) == 2 and "average_precision" in metrics:
        notes.append(f"Average precision: of finding the rows of '{classes[1]}'.")
    if any(value is None for record in records for value in (record.get(m) for m in metrics)):
        notes.append("–: not defined there; AUROC and average precision need rows of two classes.")
    grid = Grid("Measured on labelled data", tuple(columns), tuple(rows), tuple(notes))
    return EvaluationTable(tuple(records), grid)
