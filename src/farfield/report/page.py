"""The report: one HTML file that needs no network and no other file; its own small script is optional."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from farfield.diagnose.data_summary import DataSummary
from farfield.printable import visible
from farfield.protocol.selection import RULES
from farfield.records import RecordsError
from farfield.records.atomic import write_atomic
from farfield.report.collect import Sweep
from farfield.report.data_table import data_grid
from farfield.report.diagnosis_section import diagnosis_of, findings_shown
from farfield.report.diagnostics import diagnostics_table
from farfield.report.examples_section import column_grid, pictures, read_examples
from farfield.report.figures import (
    Figure,
    available_metrics,
    cost_figures,
    curve_figures,
    difference_figure,
    new_site_figure,
    prior_figure,
)
from farfield.report.findings import QUESTIONS, answer, main_rule
from farfield.report.folded_notes import folded
from farfield.report.formats import metric_label, plural, printable, public, rule_label
from farfield.report.glossary import TERMS, explained
from farfield.report.grid import Grid
from farfield.report.metric_values import methods, row_noun
from farfield.report.page_data import page_data
from farfield.report.prior_table import prior_grid
from farfield.report.records_section import event_grid, failure_grid, honesty_pairs, missing_text
from farfield.report.result_table import ResultTable
from farfield.report.settings_section import (
    command,
    model_pairs,
    norm_policy,
    own_grid,
    plan_pairs,
    shared_pairs,
    variant_grid,
)
from farfield.report.sites import panels, site_grid
from farfield.report.tables import cost_table, fairness_table, metric_table, result_table
from farfield.report.tuning_section import trial_grid

#: The parts of the page's script, in order.
SCRIPTS = ("page.js", "tables.js", "switches.js", "hover.js", "downloads.js", "start.js")


def write_report(sweep: Sweep, path: Path, *, today: date | None = None, metric: str | None = None) -> Path:
    """Write the page of a sweep, finished or not, to `path` and return it. The date is the day of writing.

    `metric` leads the page; the plan's own if none is named.
    """
    if path.is_dir():
        raise RecordsError(f"'{path}' is a folder; name a file for the report, such as '{path / 'report.html'}'")
    path.parent.mkdir(parents=True, exist_ok=True)
    page = visible(render_report(sweep, today or datetime.now(UTC).date(), metric))
    write_atomic(path, page.encode("utf-8", "replace"))
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
    environment.filters["explained"] = explained
    environment.filters["drawn"] = Markup
    plan = sweep.plan
    rule = main_rule(plan)
    main = result_table(sweep, rule, metric)
    found = answer(sweep, main)
    chosen = next((line for line in main.lines if line.algorithm == found.recommended), None)
    metrics = available_metrics(sweep) or [main.metric]
    curves = curve_figures(sweep, metrics)
    spent = cost_figures(sweep, main.metric)
    results = _result_grids(sweep, main, metrics)
    site_grids = {name: grid for name in plan["algorithms"] if (grid := site_grid(sweep, rule, name)) is not None}
    shown_site = found.recommended if found.recommended in site_grids else next(iter(site_grids), None)
    seen, diagnosis = read_examples(sweep), diagnosis_of(sweep)
    script = _script()
    told = diagnostics_table(sweep)
    return environment.get_template("report.html.j2").render(
        task=public(plan["task"]),
        date=today.isoformat(),
        facts=_facts(plan, main),
        questions=QUESTIONS,
        answer=found,
        main=main.grid(),
        main_rule=f"{rule_label(rule)}: {RULES[rule].description}",
        rule=rule,
        metric=main.metric,
        metric_name=metric_label(main.metric, main.kind),
        rules=[(r, rule_label(r), RULES[r].description) for r in plan["rules"]],
        metrics_shown=[(m, metric_label(m, plan["kind"])) for m in metrics],
        prior=prior_grid(main),
        prior_figure=prior_figure(main),
        new_site=new_site_figure(sweep, main, chosen),
        curves=curves,
        spent=spent,
        differences=difference_figure(main),
        sites=site_grids,
        shown_site=shown_site,
        site_methods=[(name, name) for name in site_grids],
        panels=[] if shown_site is None else panels(sweep, rule, shown_site),
        metrics=metric_table(sweep, rule).grid,
        fairness=fairness_table(sweep, rule, metric).grid,
        cost=cost_table(sweep).grid,
        diagnostics=told.grid if told is not None else None,
        data=None if sweep.data is None else _data(sweep.data),
        pictures=pictures(seen),
        columns=column_grid(seen),
        diagnosis=diagnosis,
        shifts=[] if diagnosis is None else findings_shown(diagnosis),
        trials=trial_grid(sweep),
        notes=[public(note) for note in folded(plan.get("notes", ()))],
        plan=plan_pairs(plan),
        model=model_pairs(plan["model"]),
        norm=norm_policy(plan["model"]),
        variants=variant_grid(plan["variants"]),
        baseline=main.baseline_name,
        shared=shared_pairs(plan["settings"]),
        own=own_grid(plan["settings"], row_noun(plan)),
        noun=row_noun(plan),
        failures=failure_grid(sweep),
        missing=missing_text(sweep),
        events=event_grid(sweep),
        honesty=honesty_pairs(sweep, rule),
        command=command(plan),
        terms=TERMS,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        page_data=Markup(page_data({"results": results, "sites": site_grids}, [*curves, *spent])),
    )


def _script() -> str:
    """The page's script. It is allowed by its hash, so nothing else on the page can run."""
    folder = files("farfield.report") / "templates" / "script"
    parts = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return '"use strict";\n{\n' + "\n".join(parts) + "}\n"


def _result_grids(sweep: Sweep, main: ResultTable, metrics: list[str]) -> dict[str, Grid]:
    """The result table for every rule and metric that the switches offer."""
    grids = {}
    for rule in sweep.plan["rules"]:
        for metric in metrics:
            same = (rule, metric) == (main.rule, main.metric)
            grids[f"{rule}|{metric}"] = main.grid() if same else result_table(sweep, rule, metric).grid()
    return grids


def _data(data: DataSummary) -> Grid:
    grid = data_grid(data)
    return replace(grid, title=public(grid.title))


def _why(plan: Mapping[str, Any], table: ResultTable) -> str:
    """Say why another metric than accuracy leads."""
    reason = plan.get("metric_reason", "")
    told = table.metric == plan.get("metric") and table.metric not in ("accuracy", "rmse") and reason
    return f" ({reason})" if told else ""


def _facts(plan: Mapping[str, Any], table: ResultTable) -> list[str]:
    return [
        f"{plan['kind']}, by {metric_label(table.metric, table.kind)}{_why(plan, table)}",
        _count(plan),
        plural(len(plan["held_out"]), "held-out domain"),
        plural(len(plan["seeds"]), "seed"),
        plural(plan["rounds"], "round"),
    ]


def _count(plan: Mapping[str, Any]) -> str:
    """'3 methods', or '4 variants of 3 methods'."""
    of = plural(len(set(methods(plan).values())), "method")
    return of if row_noun(plan) == "method" else f"{plural(len(plan['variants']), 'variant')} of {of}"


__all__ = ["Figure", "render_report", "write_report"]
