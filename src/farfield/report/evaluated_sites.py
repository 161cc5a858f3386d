"""The figures of each evaluated site as a table: support, ranking and calibration, with what was too thin to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farfield.report.formats import MISSING, interval, metric_value, number
from farfield.report.grid import Cell, Column, Grid


def evaluated_sites_grid(sites: Sequence[tuple[str, Mapping[str, Any]]]) -> Grid | None:
    """One line per site, from its name and figures; None for more than two classes, whose figures are in the JSON."""
    figures = [of for _, of in sites]
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    if all("events" in of and of["events"] is not None for of in figures):
        columns = (
            Column("site", text=True),
            Column("rows"),
            Column("events"),
            Column("AUROC", "[95 %]"),
            Column("calibration slope", "[95 %]"),
            Column("intercept", "[95 %]"),
        )
        rows = tuple((Cell(name), *_support(of), _auroc(of), *_line(of)) for name, of in sites)
        about = "slope: 1 is perfect, below 1 scores are too extreme. intercept: 0 is perfect, above 0 events are more "
        notes = [f"{about}frequent than scored."]
    elif all("residuals" in of for of in figures):
        columns = (Column("site", text=True), Column("rows"), Column("calibration slope"), Column("intercept"))
        rows = tuple((Cell(name), Cell(f"{of['rows']:,}"), *_line(of)) for name, of in sites)
        notes = ["Of the line of truths on predictions: a slope of 1 and an intercept of 0 are perfect."]
    else:
        return None
    for name, of in sites:
        notes += [f"{name}: {reason}." for reason in [of["too_thin"], *of["refused"].values()] if reason]
    return Grid("Ranking and calibration", columns, rows, tuple(notes))


def _support(of: Mapping[str, Any]) -> tuple[Cell, Cell]:
    return Cell(f"{of['rows']:,}"), Cell(f"{of['events']:,}")


def _auroc(of: Mapping[str, Any]) -> Cell:
    found = of["auroc"]
    if found is None:
        return Cell(MISSING, tone="missing")
    return Cell(metric_value("auroc", found["value"]), interval("auroc", found["low"], found["high"], found["value"]))


def _line(of: Mapping[str, Any]) -> tuple[Cell, Cell]:
    found = of["calibration"] or {}
    return _estimate(found, "slope"), _estimate(found, "intercept")


def _estimate(found: Mapping[str, Any], name: str) -> Cell:
    value, low, high = (found.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return Cell(MISSING, tone="missing")
    if low is None or high is None:
        return Cell(number(value))
    beside = (low, high)
    return Cell(number(value, like=beside), f"[{number(low, like=beside)}, {number(high, like=beside)}]")
