"""The report: one HTML file that needs no network, no other file and no script."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from farfield.diagnose.data_summary import DataSummary
from farfield.models import NORM_POLICIES
from farfield.protocol.metrics import headline
from farfield.protocol.selection import RULES
from farfield.records import RecordsError
from farfield.records.atomic import write_atomic
from farfield.report.collect import Sweep
from farfield.report.curves import VALIDATED, difference_intervals, held_out_curves, validation_curves
from farfield.report.data_table import data_grid
from farfield.report.diagnostics import diagnostics_table
from farfield.report.findings import findings, main_rule
from farfield.report.formats import (
    MISSING,
    is_percent,
    metric_label,
    plural,
    printable,
    public,
    rule_label,
    setting,
    settings_text,
)
from farfield.report.grid import Cell, Column, Grid
from farfield.report.metric_values import methods, row_noun
from farfield.report.plots import Range, curves, differences
from farfield.report.result_table import ResultTable
from farfield.report.tables import cost_table, fairness_table, metric_table, result_table

#: Kinds of events shown; a federation that drops every reply would fill a book otherwise.
SHOWN_EVENTS = 100

_PLAN = {
    "rounds": "rounds",
    "evaluate_every": "rounds between evaluations",
    "partition": "partition",
    "clients": "clients",
    "cohort": "clients in a round",
    "validation": "share of source rows kept for validation",
    "quorum": "share of replies that a round needs",
    "deadline": "seconds that a round may take",
}
_UNSET = {"clients": "one per domain", "cohort": "all", "deadline": "no limit"}


@dataclass(frozen=True)
class Figure:
    """A plot with what a reader needs to read it. Without a plot, `caption` says why."""

    svg: Markup | None
    caption: str


def write_report(sweep: Sweep, path: Path, *, today: date | None = None, metric: str | None = None) -> Path:
    """Write the page of a sweep, finished or not, to `path` and return it. The date is the day of writing.

    `metric` leads the page; accuracy, or the loss of a regression, if none is named.
    """
    if path.is_dir():
        raise RecordsError(f"'{path}' is a folder; name a file for the report, such as '{path / 'report.html'}'")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render_report(sweep, today or datetime.now(UTC).date(), metric).encode("utf-8", "replace"))
    return path


def render_report(sweep: Sweep, today: date, metric: str | None = None) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("farfield.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    plan = sweep.plan
    rule = main_rule(plan)
    main = result_table(sweep, rule, metric)
    others = [result_table(sweep, r, metric) for r in plan["rules"] if r != rule]
    return environment.get_template("report.html.j2").render(
        task=public(plan["task"]),
        date=today.isoformat(),
        facts=_facts(plan),
        findings=findings(sweep, main),
        main=main.grid(),
        main_rule=f"{rule_label(rule)}: {RULES[rule].description}",
        curves=_curve_figures(sweep, main.metric),
        differences=_difference_figure(main),
        others=[(rule_label(t.rule), RULES[t.rule].description, _without(t.grid(), main.notes())) for t in others],
        metrics=metric_table(sweep, rule).grid,
        fairness=fairness_table(sweep, rule, metric).grid,
        cost=cost_table(sweep).grid,
        diagnostics=told.grid if (told := diagnostics_table(sweep)) is not None else None,
        data=None if sweep.data is None else _data(sweep.data),
        notes=[public(note) for note in plan.get("notes", ())],
        plan=_plan(plan),
        model=_model(plan["model"]),
        norm=_norm(plan["model"]),
        variants=_variants(plan["variants"]),
        baseline=main.baseline_name,
        shared=_shared(plan["settings"]),
        own=_own(plan["settings"], row_noun(plan)),
        noun=row_noun(plan),
        failures=_failures(sweep),
        missing=_missing(sweep),
        events=_events(sweep),
        honesty=_honesty(sweep, rule),
    )


def _data(data: DataSummary) -> Grid:
    grid = data_grid(data)
    return replace(grid, title=public(grid.title))


def _without(grid: Grid, notes: tuple[str, ...]) -> Grid:
    """The table without notes that stand on the page already."""
    return replace(grid, notes=tuple(note for note in grid.notes if note not in notes))


def _facts(plan: Mapping[str, Any]) -> list[str]:
    return [
        plan["kind"],
        _count(plan),
        plural(len(plan["held_out"]), "held-out domain"),
        plural(len(plan["seeds"]), "seed"),
        plural(plan["rounds"], "round"),
    ]


def _count(plan: Mapping[str, Any]) -> str:
    """'3 methods', or '4 variants of 3 methods'."""
    of = plural(len(set(methods(plan).values())), "method")
    return of if row_noun(plan) == "method" else f"{plural(len(plan['variants']), 'variant')} of {of}"


def _curve_figures(sweep: Sweep, metric: str) -> list[Figure]:
    validated = metric if metric in VALIDATED else headline(sweep.plan["kind"])
    groups = [
        ("held-out domains", "held-out", metric, held_out_curves(sweep, metric)),
        ("source validation", "validation", validated, validation_curves(sweep, validated)),
    ]
    figures = []
    for where, identity, shown, series in groups:
        axis = Range.of([of for _, _, other, of in groups if other == shown])
        if axis is None or not series:
            figures.append(Figure(None, f"No round has a finite value on {where} in every run, so there is no curve."))
            continue
        label = metric_label(shown, sweep.plan["kind"]) + (", %" if is_percent(shown) else "")
        svg = curves(
            series,
            axis,
            title=f"{label} on {where} by round",
            x_label="round",
            y_label=f"{label}, {where}",
            metric=shown,
            identity=identity,
        )
        banded = any(s.band for s in series)
        band = "band: ± one standard deviation over seeds" if banded else "one seed: no band"
        figures.append(Figure(Markup(svg), f"{where.capitalize()}: mean over runs; {band}."))
    return figures


def _difference_figure(table: ResultTable) -> Figure:
    rows = difference_intervals(table)
    if table.baseline is None:
        return Figure(None, "FedAvg was not run, so there is nothing to take differences to.")
    if not rows:
        return Figure(
            None, f"No {table.noun} has a finite difference to {table.baseline_name}, so there is none to show."
        )
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
    return Figure(Markup(svg), caption)


def _plan(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    listed = [
        ("task", public(plan["task"])),
        (f"{row_noun(plan)}s", ", ".join(plan["algorithms"])),
        ("held out, one at a time", ", ".join(plan.get("folds") or plan["held_out"])),
        ("seeds", ", ".join(str(seed) for seed in plan["seeds"])),
        ("selection rules", ", ".join(rule_label(rule) for rule in plan["rules"])),
    ]
    for key, label in _PLAN.items():
        value = plan.get(key)
        listed.append((label, _UNSET.get(key, "not set") if value is None else setting(value)))
    return listed


def _model(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key.replace("_", " "), setting(value)) for key, value in model.items()]


def _norm(model: Mapping[str, Any]) -> tuple[str, str]:
    """The norm policy and what it means, for a client that was never there too."""
    norm = model.get("norm", "none")
    return norm, NORM_POLICIES.get(norm, "a policy that this version of farfield does not know")


def _variants(variants: Sequence[Mapping[str, Any]]) -> Grid | None:
    """What each variant is: its method and its own settings. None when all are methods under their own names."""
    if all(v["label"] == v["method"] and not v["settings"] for v in variants):
        return None
    rows = tuple((Cell(v["label"]), Cell(v["method"]), Cell(settings_text(v["settings"]) or MISSING)) for v in variants)
    columns = (Column("variant", text=True), Column("method", text=True), Column("own settings", text=True))
    return Grid("Variants", columns, rows)


def _shared(settings: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Parameters that every variant has, with the same value."""
    first = next(iter(settings.values()), {})
    same = [k for k, v in first.items() if all(k in of and of[k] == v for of in settings.values())]
    return [(key, setting(first[key])) for key in same]


def _own(settings: Mapping[str, Mapping[str, Any]], noun: str) -> Grid | None:
    """The parameters in which methods or variants differ, one column per parameter; None when there are none."""
    shared = {key for key, _ in _shared(settings)}
    keys = [key for key in dict.fromkeys(k for of in settings.values() for k in of) if key not in shared]
    if not keys:
        return None
    rows = tuple(
        (Cell(name), *(Cell(setting(of[key])) if key in of else Cell(MISSING, tone="missing") for key in keys))
        for name, of in settings.items()
    )
    return Grid("Parameters that differ", (Column(noun, text=True), *(Column(key) for key in keys)), rows)


def _failures(sweep: Sweep) -> Grid | None:
    if not sweep.failures:
        return None
    columns = (
        Column(row_noun(sweep.plan), text=True),
        Column("held out", text=True),
        Column("seed"),
        Column("reason", text=True),
    )
    runs = {(f["algorithm"], f.get("fold", f["held_out"]), f["seed"], str(f["error"])) for f in sweep.failures}
    rows = tuple((Cell(a), Cell(fold), Cell(str(seed)), Cell(public(error))) for a, fold, seed, error in sorted(runs))
    return Grid("Runs without a result", columns, rows)


def _missing(sweep: Sweep) -> str:
    have = {(r["algorithm"], r["held_out"], r["seed"]) for r in [*sweep.rows, *sweep.failures]}
    lacking = [
        f"{algorithm}, {held_out} held out, seed {seed}"
        for algorithm in sweep.plan["algorithms"]
        for held_out in sweep.plan["held_out"]
        for seed in sweep.plan["seeds"]
        if (algorithm, held_out, seed) not in have
    ]
    if not lacking:
        return ""
    rest = f" and {len(lacking) - 12} more" if len(lacking) > 12 else ""
    return f"{plural(len(lacking), 'run')} not started: {'; '.join(lacking[:12])}{rest}."


def _events(sweep: Sweep) -> Grid | None:
    """Events of the same kind and cause in one line, the most frequent first."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for event in sweep.events:
        key = (event["algorithm"], event["kind"], event.get("phase") or "", public(str(event["message"])))
        groups.setdefault(key, []).append(event["round"])
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = []
    for (algorithm, kind, phase, message), rounds in ordered[:SHOWN_EVENTS]:
        span = str(min(rounds)) if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
        rows.append((Cell(algorithm), Cell(kind, phase), Cell(message), Cell(f"{len(rounds):,}"), Cell(span)))
    columns = (
        Column(row_noun(sweep.plan), text=True),
        Column("event", text=True),
        Column("cause", text=True),
        Column("times"),
        Column("rounds"),
    )
    left = len(ordered) - SHOWN_EVENTS
    return Grid("Events", columns, tuple(rows), (f"{left} rarer kinds are not shown.",) if left > 0 else ())


def _honesty(sweep: Sweep, rule: str) -> list[tuple[str, str | list[str]]]:
    plan = sweep.plan
    there = sweep.completeness
    chose = [f"{rule_label(r)}: {RULES[r].description}." for r in plan["rules"]]
    runs = f"{there.done} of {there.runs} have a result; {there.failed} failed or did not finish"
    return [
        (
            "Held-out results opened",
            f"{plural(sweep.looks, 'time')}, this one included. Each look is a chance to tune on what was held out.",
        ),
        ("Rules that chose a round", [*chose, f"The sentence at the top follows {rule_label(rule)}."]),
        ("Seeds", ", ".join(str(seed) for seed in plan["seeds"])),
        ("Runs", f"{runs}; {sweep.missing} missing."),
        (
            "p-values",
            "Runs that hold out different domains share most of their training domains, so they are not quite "
            "independent: read a p-value close to 0.05 as weak.",
        ),
        *(("Runs made with", text) for text in _run_versions(sweep)),
        (
            "Page written by",
            f"farfield {version('farfield')}, torch {version('torch')}, Python {platform.python_version()}",
        ),
    ]


def _run_versions(sweep: Sweep) -> list[str]:
    """The versions that the runs say they were made with; several if a bench was resumed after an upgrade."""
    known = [row["versions"] for row in sweep.rows if "versions" in row]
    return list(dict.fromkeys(", ".join(f"{name} {v}" for name, v in sorted(versions.items())) for versions in known))
