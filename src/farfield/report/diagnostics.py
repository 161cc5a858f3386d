"""What the methods say of their own rounds: alignment penalties, cosines, mixing weights, generator losses.

A method returns named scalars with every round. They are shown as means over its runs in the first, the second and the
last third of the rounds, which tells whether a term grows, shrinks or is dead.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from farfield.report.collect import Sweep
from farfield.report.formats import number
from farfield.report.grid import Cell, Column, Grid
from farfield.report.metric_values import row_noun
from farfield.report.tables import Table

THIRDS = ("first third", "second third", "last third")


def diagnostics_table(sweep: Sweep) -> Table | None:
    """A row for each method and diagnostic; None where no method returned any."""
    records: list[dict[str, Any]] = []
    rows = []
    for algorithm in sweep.plan["algorithms"]:
        runs = [curve.rounds for curve in sweep.curves if curve.algorithm == algorithm]
        names = dict.fromkeys(name for rounds in runs for row in rounds for name in row.get("diagnostics", {}))
        for name in names:
            means = [_mean(runs, name, third) for third in range(len(THIRDS))]
            records.append({"algorithm": algorithm, "diagnostic": name, **dict(zip(THIRDS, means, strict=True))})
            shown = [Cell(number(mean) if mean is not None else "–") for mean in means]
            rows.append((Cell(algorithm), Cell(name), *shown))
    if not rows:
        return None
    noun = row_noun(sweep.plan)
    columns = (Column(noun, text=True), Column("diagnostic", text=True), *(Column(third) for third in THIRDS))
    note = f"Means over a {noun}'s runs. What each one is: see the method's page. Every round is in rounds.jsonl."
    grid = Grid(title=f"What the {noun}s say of their rounds", columns=columns, rows=tuple(rows), notes=(note,))
    return Table(tuple(records), grid)


def _mean(runs: list[list[dict[str, Any]]], name: str, third: int) -> float | None:
    """The mean of a diagnostic over one third of every run's rounds; None where it was never there."""
    values = []
    for rounds in runs:
        start, end = (len(rounds) * part // len(THIRDS) for part in (third, third + 1))
        values += [row.get("diagnostics", {}).get(name) for row in rounds[start:end]]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
