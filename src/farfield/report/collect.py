"""A finished or unfinished sweep, read back from its folder: what tables, pages and JSON are made from.

This is the one place that opens target rows, and it counts every opening.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.diagnose.data_summary import DataSummary
from farfield.protocol.leading_metric import AUTO, metric_named
from farfield.protocol.selection import RULES, InnerRow, SourceRow, TargetRow, choose, choose_oracle, rule_named
from farfield.records import RecordsError, RunFolder, read_config
from farfield.records.atomic import broken_rows, read_rows
from farfield.records.bench_folder import BENCH, COMMANDS, DATA, FAILURE, PREPARATION, format_of
from farfield.records.checked_files import read_checked_json
from farfield.records.run_files import CONFIG, RESULT, ROUNDS
from farfield.records.sealed import SEALED, count_look, open_sealed, open_sites
from farfield.records.shapes import (
    check_config,
    check_plan,
    check_result,
    is_event,
    is_round_row,
    is_site,
    within_bounds,
)
from farfield.report.completeness import Completeness, completeness
from farfield.report.source_figures import in_label_units, source_figures


@dataclass(frozen=True)
class Curve:
    """One run by round: what the clients saw, and what the held-out domain saw."""

    algorithm: str
    held_out: str
    seed: int
    rounds: list[dict[str, Any]]
    target: list[tuple[int, dict[str, float]]]
    #: The name of the run's fold: its one held-out domain, or a group of domains that are held out together.
    fold: str = ""


@dataclass(frozen=True)
class Sweep:
    """All that a bench holds: its plan, one row and one curve per run and held-out domain, what failed, the looks.

    The plan has its `variants`, and their labels as `algorithms`. A run that holds out several domains together has a
    row, a curve or a failure for each; `fold` names the group, and costs are those of the whole run (see `runs`).
    """

    folder: Path
    plan: dict[str, Any]
    rows: list[dict[str, Any]]
    curves: list[Curve]
    failures: list[dict[str, Any]]
    events: list[dict[str, Any]]
    missing: int
    looks: int
    data: DataSummary | None = None

    @property
    def completeness(self) -> Completeness:
        """How many of the runs and held-out domains that the plan asks for are there."""
        return completeness(self.plan, self.rows, self.failures)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One row per run, for costs: those of a run that holds out several domains are counted once."""
        return list({(r["algorithm"], r.get("fold") or r["held_out"], r["seed"]): r for r in self.rows}.values())


def collect(folder: Path, purpose: str, metric: str | None = None) -> Sweep:
    """Read a sweep and choose by every rule of its plan. `purpose` goes into the count of looks.

    Another `metric` than the plan's leads selection and tables alike; None and "auto" keep the plan's.
    """
    if not (folder / BENCH).exists():
        raise RecordsError(f"there is no bench in '{folder}'; give the folder that --out named")
    plan = _plan(read_config(folder / BENCH), folder)
    if metric is not None and metric.strip().lower() != AUTO:
        plan = {**plan, "metric": metric_named(plan["kind"], metric), "metric_reason": "it was asked for"}
    typed = [row["command"] for row in read_rows(folder / COMMANDS) if isinstance(row.get("command"), str)]
    plan["commands"] = typed
    looks = count_look(folder, purpose)
    rows, curves, failures, events = [], [], [], []
    found = 0
    damaged: list[str] = []
    rounds_of = plan.get("rounds_of", {})  # a bench to which rounds are being added has runs that are too short
    for path in _run_folders(folder / "runs"):
        run = RunFolder(path)
        try:
            config, result = run.config, run.result
            check_config(config, path / CONFIG)
            if result is not None:
                check_result(result, path / RESULT)
        except (RecordsError, OSError) as error:
            damaged.append(f"the run in '{path.relative_to(folder)}' cannot be read and is left out: {error}")
            continue
        stray = _not_of(plan, config)
        if stray is not None:
            damaged.append(f"the run in '{path.relative_to(folder)}' {stray} and is left out")
            continue
        fold, group = config["held_out"], config.get("group") or [config["held_out"]]
        identity = {"algorithm": config["algorithm"], "seed": config["seed"], "fold": fold}
        if config.get("inner") is not None:
            if result is None:
                why = f"inner run without '{config['inner']}': {_failure(path)}"
                failures += [{**identity, "held_out": domain, "error": why} for domain in group]
            continue
        found += 1
        events += [{**event, **identity, "held_out": fold} for event in run.events() if is_event(event)]
        if result is None or result["rounds"] < rounds_of.get(identity["algorithm"], 0):
            failures += [{**identity, "held_out": domain, "error": _failure(path)} for domain in group]
            continue
        try:
            rounds = _rounds(plan, run)
        except RecordsError as error:
            damaged.append(f"the run in '{path.relative_to(folder)}' cannot be read and is left out: {error}")
            continue
        broken = sum(broken_rows(path / name) for name in (ROUNDS, SEALED)) + len(run.rounds()) - len(rounds)
        if broken:
            what = "1 line" if broken == 1 else f"{broken} lines"
            damaged.append(f"{what} of the records in '{path.relative_to(folder)}' cannot be read: rounds are missing")
        for domain in group:
            of = {**identity, "held_out": domain}
            target = [(n, within_bounds(found)) for n, found in open_sealed(path, domain if len(group) > 1 else None)]
            curve = Curve(**of, rounds=rounds, target=target)
            curves.append(curve)
            try:
                selection = _select(plan, curve, path)
                chosen = {of_rule["round"] for of_rule in selection.values()}
                opened = open_sites(path, chosen, domain if len(group) > 1 else None)
                sites = {number: site for number, site in opened.items() if is_site(site)}
                for of_rule in selection.values():
                    of_rule["site"] = sites.get(of_rule["round"])
            except ValueError as error:  # a run that diverged has no round to choose
                failures.append({**of, "error": str(error)})
            else:
                made = {**_made_with(plan, curve), **result, "fold_domains": len(group)}
                rows.append({**made, **of, "selection": selection})
    expected = len(plan["algorithms"]) * len(plan.get("folds") or plan["held_out"]) * len(plan["seeds"])
    plan = {**plan, "notes": [*plan.get("notes", ()), *damaged]}
    order = {name: i for i, name in enumerate(plan["algorithms"])}
    domains = {name: i for i, name in enumerate(plan["held_out"])}
    rows.sort(key=lambda r: (order[r["algorithm"]], domains[r["held_out"]], r["seed"]))
    return Sweep(folder, plan, rows, curves, failures, events, expected - found, looks, _data(folder / DATA))


def _plan(plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a plan of any format as one of the newest: with `variants`, their labels as `algorithms`, and a metric.

    `tuned` is empty where nothing was.
    Before format 3 accuracy led (of a regression the loss), and the rule 'source-validation' chose by it.
    """
    number = format_of(plan, folder)
    for name in ("algorithms",) * (number == 1) + ("rules", "kind") * (number < 3) + ("variants",) * (number > 1):
        if name not in plan:
            raise RecordsError(f"'{folder / BENCH}' is damaged: it has no '{name}'")
    if number < 3 and not all(isinstance(plan.get(name, []), list) for name in ("algorithms", "rules")):
        raise RecordsError(f"'{folder / BENCH}' is damaged: its algorithms and its rules are lists of names")
    if number == 1:
        plan = {**plan, "variants": [{"label": n, "method": n, "settings": {}} for n in plan["algorithms"]]}
    if number < 3:
        rules = ["source-accuracy" if rule == "source-validation" else rule for rule in plan["rules"]]
        metric = "loss" if plan["kind"] == "regression" else "accuracy"
        plan = {**plan, "rules": rules, "metric": metric, "metric_reason": "older versions led with it"}
    check_plan(plan, folder / BENCH)
    try:
        for rule in plan["rules"]:
            rule_named(rule)
        metric_named(plan["kind"], plan["metric"])
    except ValueError as error:
        raise RecordsError(f"'{folder / BENCH}' is damaged: {error}") from error
    return {"tuned": {}, **plan, "algorithms": [variant["label"] for variant in plan["variants"]]}


def _not_of(plan: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Say why a run is none of this bench: a copy from another one, or a leftover; None where it belongs here."""
    fold = config.get("held_out")
    folds = plan.get("folds") or {name: [name] for name in plan["held_out"]}
    known = config.get("algorithm") in plan["algorithms"] and config.get("seed") in plan["seeds"]
    if not known or fold not in folds or set(config.get("group") or [fold]) != set(folds[fold]):
        return "is not in the plan"
    hashes = {of["data"] for of in (plan, config) if of.get("data")}
    return "was made with other data" if len(hashes) > 1 else None


def _made_with(plan: dict[str, Any], curve: Curve) -> dict[str, Any]:
    """Return a run's method and settings: the results of format 1 do not say them."""
    method = next(v["method"] for v in plan["variants"] if v["label"] == curve.algorithm)
    return {"method": method, "settings": plan["settings"][curve.algorithm]}


def _data(path: Path) -> DataSummary | None:
    if not path.exists():
        return None
    try:
        return DataSummary.model_validate_json(json.dumps(read_checked_json(path)))
    except ValueError as error:
        raise RecordsError(f"'{path}' is damaged: {' '.join(str(error).split())}") from error


def _failure(run: Path) -> str:
    try:
        return str(read_checked_json(run / FAILURE)["error"])
    except (OSError, ValueError, KeyError, TypeError):  # a run that was killed says nothing, or not all of it
        return "not finished"


def _run_folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.rglob("config.toml"))


def _select(plan: dict[str, Any], curve: Curve, path: Path) -> dict[str, dict[str, Any]]:
    """For each rule the round it chose, the held-out metrics of that round, and what the sources validated then."""
    by_round = dict(curve.target)
    validated = {r["round"]: r["validation"] for r in curve.rounds if "validation" in r}
    source = [
        SourceRow(r["round"], {name: _numbers(metrics) for name, metrics in r["validation"].items()})
        for r in curve.rounds
        if "validation" in r and r["round"] in by_round
    ]
    target = [TargetRow(round, _numbers(metrics)) for round, metrics in curve.target]
    selected: dict[str, dict[str, Any]] = {}
    for name in plan["rules"]:
        if RULES[name].is_oracle:
            chosen = choose_oracle(plan["metric"], target, name)
        elif _is_private(plan, curve):  # no validation figure has left a client
            chosen = choose("last", plan["metric"], source)
        elif RULES[name].needs_inner:
            inner = _inner_rows(path)
            chosen = choose(name, plan["metric"], source, inner)
        else:
            chosen = choose(name, plan["metric"], source)
        selected[name] = {"round": chosen, **by_round[chosen], **source_figures(validated.get(chosen, {}))}
    return selected


def _is_private(plan: Mapping[str, Any], curve: Curve) -> bool:
    return bool(plan["settings"].get(curve.algorithm, {}).get("privacy", "none") != "none")


def _rounds(plan: dict[str, Any], run: RunFolder) -> list[dict[str, Any]]:
    """Return the rows of a run's rounds; a regression's validation is in the units of the labels."""
    rows = [_bounded(row) for row in run.rounds() if is_round_row(row)]
    if plan["kind"] != "regression":
        return rows
    scale = _label_scale(run.path / PREPARATION)
    return [
        {**row, "validation": in_label_units(row["validation"], scale)} if "validation" in row else row for row in rows
    ]


def _bounded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a round without figures that nothing can be computed with."""
    own: dict[str, Any] = {name: within_bounds(row[name]) for name in ("diagnostics", "inner") if name in row}
    nested: dict[str, Any] = {
        name: {domain: within_bounds(figures) for domain, figures in row[name].items()}
        for name in ("validation", "inner_domains")
        if name in row
    }
    return {**row, **within_bounds({"loss": row.get("loss")}), **own, **nested}


def _label_scale(preparation: Path) -> float:
    """Return what the labels of a run were divided by; 1 for a task whose labels are taken as they are."""
    try:
        label = read_checked_json(preparation).get("label")
    except FileNotFoundError:
        return 1.0
    scale = label.get("scale", 1.0) if isinstance(label, dict) else 1.0
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale) or scale <= 0:
        raise RecordsError(f"'{preparation}' is damaged: its labels are scaled by {str(scale)[:40]!r}")
    return float(scale)


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Records hold null where a value was not finite."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def _inner_rows(path: Path) -> dict[str, list[InnerRow]]:
    """Rows of the inner runs beside a run: what each source domain scored when it was held out as well."""
    inner: dict[str, list[InnerRow]] = {}
    for folder in sorted(path.parent.glob("inner-*")):
        run = RunFolder(folder / path.name)
        whole, result = RunFolder(path).result, run.result if run.exists else None
        # While rounds are added, an inner run can have fewer than the run beside it.
        if whole is None or result is None or result["rounds"] < whole["rounds"]:
            raise ValueError("inner runs are missing, so 'leave-one-domain-out' cannot choose")
        for row in map(_bounded, filter(is_round_row, run.rounds())):
            alone = {run.config["inner"]: row["inner"]} if "inner" in row else {}
            for domain, metrics in (alone | row.get("inner_domains", {})).items():
                inner.setdefault(domain, []).append(InnerRow(row["round"], _numbers(metrics)))
    if not inner:
        raise ValueError("inner runs are missing, so 'leave-one-domain-out' cannot choose")
    return inner
