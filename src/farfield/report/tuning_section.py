"""The trials of a tuning as a table: what was tried for each method, and what was taken."""

from __future__ import annotations

from typing import Any

from farfield.protocol.metrics import METRICS
from farfield.records.atomic import read_rows
from farfield.records.shapes import is_trial
from farfield.report.collect import Sweep
from farfield.report.formats import MISSING, metric_label, metric_value, number, public, settings_text
from farfield.report.grid import Cell, Column, Grid

#: Trials that are shown; `tuning/` has them all.
SHOWN = 400


def trials_of(sweep: Sweep) -> list[dict[str, Any]]:
    """The trials in a bench's folder; a bench without tuning has none. Lines that cannot be read are passed over."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for path in sorted((sweep.folder / "tuning").rglob("trials.jsonl")):
        for row in read_rows(path):
            if is_trial(row):
                found[row["algorithm"], row.get("held_out") or "", row["number"]] = row
    return [found[key] for key in sorted(found)]


def trial_grid(sweep: Sweep) -> Grid | None:
    """One line per trial; the one that was taken for its held-out domain is marked. None without tuning."""
    trials = trials_of(sweep)
    if not trials:
        return None
    tuned = sweep.plan.get("tuned") or {}
    rows = []
    for trial in trials[:SHOWN]:
        held_out = trial.get("held_out")
        best = (tuned.get(trial["algorithm"]) or {}).get("best") or {}
        taken = bool(trial.get("settings")) and best.get(held_out, best) == trial["settings"]
        value, metric = trial.get("criterion"), str(trial.get("metric") or "")
        shown = metric_value(metric, value) if metric in METRICS[sweep.plan["kind"]] else number(value, 4)
        detail = ", ".join(["defaults"] * bool(trial.get("default")) + ["taken"] * taken)
        rows.append(
            (
                Cell(trial["algorithm"]),
                Cell(public(str(held_out)) if held_out else MISSING),
                Cell(str(trial["number"]), value=float(trial["number"])),
                Cell(settings_text(trial.get("settings") or {}) or MISSING, detail, "better" if taken else ""),
                Cell(shown, value=value)
                if value is not None
                else Cell(str(trial.get("state", MISSING)), tone="missing"),
            )
        )
    metrics = {str(trial.get("metric")) for trial in trials if trial.get("metric")}
    named = metric_label(metrics.pop(), sweep.plan["kind"]) if len(metrics) == 1 else "criterion"
    columns = (
        Column("method", text=True),
        Column("held out", text=True),
        Column("trial"),
        Column("settings", text=True, term="tuned"),
        Column(named, "source data"),
    )
    notes = ["Trials are compared by source data alone; the held-out domain has no part in it."]
    if len(trials) > SHOWN:
        notes.append(f"The first {SHOWN} of {len(trials):,} trials; the others are in the folder 'tuning'.")
    return Grid("Trials of the tuning", columns, tuple(rows), tuple(notes))
