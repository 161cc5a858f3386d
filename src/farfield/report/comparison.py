"""Several benches of one task as one: what was run apart is compared as if it had been run together.

Runs are paired where they match: the same held-out domain, held out with the same others, and the same seed. What only
some of the benches have is left out, with a note. Benches of other tasks or other data are refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farfield.errors import UserError
from farfield.report.collect import Curve, Sweep
from farfield.report.completeness import completeness
from farfield.report.formats import listed, setting
from farfield.report.metric_values import baseline_of, default_baseline

#: Fields of a plan in which benches may differ, which a reader must then know.
EXPLAINED = {
    "rounds": "rounds",
    "validation": "the share of rows for validation",
    "partition": "the partition",
    "clients": "clients",
    "cohort": "clients in a round",
    "augment": "augmentation",
    "quorum": "the quorum",
    "model": "the model",
}


class ComparisonError(UserError):
    """Benches that cannot stand in one table, in one sentence."""


def compared(sweeps: Sequence[Sweep], baseline: str | None = None) -> Sweep:
    """Put benches of the same task and data into one. `baseline` is a label, or a method, of the comparison."""
    if len(sweeps) == 1 and baseline is None:
        return sweeps[0]
    names = bench_names([sweep.folder for sweep in sweeps])
    _check_same(sweeps, names)
    held_out, folds, notes = _common_domains(sweeps, names)
    seeds, of_seeds = _common("seed", [sweep.plan["seeds"] for sweep in sweeps], names)
    rules, of_rules = _common("rule", [sweep.plan["rules"] for sweep in sweeps], names)
    notes += [*of_seeds, *of_rules, *_differences(sweeps, names)]
    parts = [_part(sweep, set(held_out), set(seeds)) for sweep in sweeps]
    labels, same = _labels(parts, names)
    notes += same
    rows = [
        {**row, "algorithm": of[row["algorithm"]], "bench": name}
        for sweep, of, name in zip(parts, labels, names, strict=True)
        for row in sweep.rows
        if row["algorithm"] in of
    ]
    curves = [
        replace(curve, algorithm=of[curve.algorithm])
        for sweep, of in zip(parts, labels, strict=True)
        for curve in sweep.curves
        if curve.algorithm in of
    ]
    failures, events = (
        [
            {**entry, "algorithm": of[entry["algorithm"]]}
            for sweep, of in zip(parts, labels, strict=True)
            for entry in getattr(sweep, kind)
            if entry["algorithm"] in of
        ]
        for kind in ("failures", "events")
    )
    plan = _plan(sweeps, labels, names) | {
        "held_out": held_out,
        "folds": folds,
        "seeds": seeds,
        "rules": rules,
        "commands": [shlex.join(["farfield", "report", *names])],
        "notes": [*dict.fromkeys(note for sweep in sweeps for note in sweep.plan.get("notes", ())), *notes],
    }
    plan["baseline"] = _baseline(baseline, plan, sweeps[0], labels[0])
    order = {label: number for number, label in enumerate(plan["algorithms"])}
    places = {name: number for number, name in enumerate(held_out)}
    rows.sort(key=lambda row: (order[row["algorithm"]], places[row["held_out"]], row["seed"]))
    return Sweep(
        folder=sweeps[0].folder,
        plan=plan,
        rows=rows,
        curves=curves,
        failures=failures,
        events=events,
        missing=completeness(plan, rows, failures).missing,
        looks=sum(sweep.looks for sweep in sweeps),
        data=sweeps[0].data,
    )


def bench_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the folders' paths that tell them apart."""
    paths = [folder.resolve().parts for folder in folders]
    if len(set(paths)) < len(paths):
        twice = next(folder for number, folder in enumerate(folders) if paths[number] in paths[:number])
        raise ComparisonError(f"'{twice}' is given twice; give each bench once")
    length = 1
    while len({path[-length:] for path in paths}) < len(paths):
        length += 1
    return ["/".join(path[-length:]) for path in paths]


def _check_same(sweeps: Sequence[Sweep], names: Sequence[str]) -> None:
    """Refuse what cannot stand in one table."""
    first = sweeps[0].plan
    for sweep, name in zip(sweeps[1:], names[1:], strict=True):
        plan = sweep.plan
        for key, what in (("task", "tasks"), ("kind", "kinds of task")):
            if plan[key] != first[key]:
                raise ComparisonError(
                    f"'{names[0]}' and '{name}' are benches of different {what}, '{first[key]}' and '{plan[key]}', so "
                    "their figures do not compare; report each alone"
                )
        if plan.get("data") != first.get("data"):
            raise ComparisonError(
                f"'{names[0]}' and '{name}' are both of task '{first['task']}' but of different data (hash "
                f"{first.get('data')} and {plan.get('data')}), so their figures do not compare; report each alone"
            )
        if plan.get("metric") != first.get("metric"):
            raise ComparisonError(
                f"'{names[0]}' chose rounds by {first.get('metric')} and '{name}' by {plan.get('metric')}; name the "
                "one that leads with --metric"
            )


def _common_domains(sweeps: Sequence[Sweep], names: Sequence[str]) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Return the domains that all benches hold out together with the same others, the folds, and what is left out."""
    fold_of = [_fold_of(sweep.plan) for sweep in sweeps]
    order = list(dict.fromkeys(name for sweep in sweeps for name in sweep.plan["held_out"]))
    shared = [name for name in order if all(name in of for of in fold_of)]
    same = [name for name in shared if len({of[name] for of in fold_of}) == 1]
    if not same:
        why = f"'{shared[0]}' is held out with other domains in each" if shared else "they hold out different domains"
        raise ComparisonError(f"no run of {_quoted(names)} matches: {why}")
    notes = []
    if len(same) < len(shared):
        apart = [name for name in shared if name not in same]
        notes.append(f"held out with other domains in each bench, so left out of the comparison: {_some(apart)}")
    for of, name in zip(fold_of, names, strict=True):
        alone = [domain for domain in of if domain not in shared]
        if alone:
            notes.append(f"held out in '{name}' and not in all benches, so left out of the comparison: {_some(alone)}")
    groups = {name: list(group) for name, group in _folds(sweeps[0].plan).items() if set(group) <= set(same)}
    return same, groups if any(len(group) > 1 for group in groups.values()) else {}, notes


def _common(what: str, of: Sequence[Sequence[Any]], names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return what all benches have of seeds or rules, and a note for each bench that has more."""
    common = [entry for entry in of[0] if all(entry in other for other in of)]
    if not common:
        having = listed(
            [f"'{name}' has {what}s {', '.join(map(str, has))}" for name, has in zip(names, of, strict=True)]
        )
        add = "; add seeds to one of them with 'farfield bench … --resume --seeds'" if what == "seed" else ""
        raise ComparisonError(f"the benches have no {what} in common: {having}{add}")
    notes = []
    for has, name in zip(of, names, strict=True):
        more = [str(entry) for entry in has if entry not in common]
        if more:
            notes.append(
                f"{what}{'s' if len(more) > 1 else ''} {_some(more)} of '{name}': not in all benches, so left out of "
                "the comparison"
            )
    return common, notes


def _differences(sweeps: Sequence[Sweep], names: Sequence[str]) -> list[str]:
    """Return a note per setting in which the benches differ: it is mixed into the differences of their methods."""
    notes = []
    for key, words in EXPLAINED.items():
        values = [sweep.plan.get(key) for sweep in sweeps]
        if all(value == values[0] for value in values):
            continue
        if key == "model":
            told = "see each bench's own page"
        else:
            told = ", ".join(f"{setting(value)} in '{name}'" for value, name in zip(values, names, strict=True))
        notes.append(f"the benches differ in {words} ({told}), which is mixed into the differences of their methods")
    for sweep, name in zip(sweeps, names, strict=True):
        if sweep.completeness.sentence:
            notes.append(f"'{name}' is not finished: {sweep.completeness.sentence}")
    return notes


def _part(sweep: Sweep, held_out: set[str], seeds: set[int]) -> Sweep:
    """Return what a bench has on these domains and seeds."""

    def kept(entry: Mapping[str, Any]) -> bool:
        return entry["held_out"] in held_out and entry["seed"] in seeds

    def on(curve: Curve) -> bool:
        return curve.held_out in held_out and curve.seed in seeds

    runs = {(row.get("fold") or row["held_out"], row["seed"]) for row in sweep.rows if kept(row)}
    return replace(
        sweep,
        rows=[row for row in sweep.rows if kept(row)],
        curves=[curve for curve in sweep.curves if on(curve)],
        failures=[failure for failure in sweep.failures if kept(failure)],
        events=[event for event in sweep.events if (event["held_out"], event["seed"]) in runs],
    )


def _labels(parts: Sequence[Sweep], names: Sequence[str]) -> tuple[list[dict[str, str]], list[str]]:
    """Return new labels by old ones, bench by bench, and what is said of variants that are the same in several.

    Where a label stands for other runs in another bench, it gets the bench's name. Where the runs are the same to the
    bit, they stand in the table once.
    """
    having: dict[str, list[int]] = {}
    for number, sweep in enumerate(parts):
        for label in sweep.plan["algorithms"]:
            having.setdefault(label, []).append(number)
    labels: list[dict[str, str]] = [{} for _ in parts]
    notes = []
    for label, benches in having.items():
        first = _hashes(parts[benches[0]], label)
        again = [number for number in benches[1:] if first and _hashes(parts[number], label) == first]
        kept = [number for number in benches if number not in again]
        for number in kept:
            labels[number][label] = label if len(kept) == 1 else f"{label} ({names[number]})"
        if again:
            others = _quoted([names[number] for number in [benches[0], *again]])
            notes.append(f"the runs of {label} are the same to the bit in {others}, so they stand here once")
    return labels, notes


def _hashes(sweep: Sweep, label: str) -> dict[tuple[str, int], Any]:
    return {
        (row["held_out"], row["seed"]): (row.get("model_sha256"), row["selection"])
        for row in sweep.rows
        if row["algorithm"] == label
    }


def _plan(sweeps: Sequence[Sweep], labels: Sequence[Mapping[str, str]], names: Sequence[str]) -> dict[str, Any]:
    """Return the first bench's plan with the variants of all."""
    longest = max(sweep.plan["rounds"] for sweep in sweeps)
    variants: list[dict[str, Any]] = []
    merged: dict[str, dict[str, Any]] = {"settings": {}, "rounds_of": {}, "tuned": {}, "left_out": {}}
    for sweep, of in zip(sweeps, labels, strict=True):
        plan = sweep.plan
        variants += [{**v, "label": of[v["label"]]} for v in plan["variants"] if v["label"] in of]
        for old, new in of.items():
            merged["settings"][new] = plan["settings"][old]
            rounds = plan.get("rounds_of", {}).get(old, plan["rounds"])
            merged["rounds_of"][new] = round(rounds * longest / plan["rounds"])
            if old in plan.get("tuned", {}):
                merged["tuned"][new] = plan["tuned"][old]
        merged["left_out"] |= plan.get("left_out", {})
    algorithms = [variant["label"] for variant in variants]
    merged["left_out"] = {label: why for label, why in merged["left_out"].items() if label not in algorithms}
    return {
        **sweeps[0].plan,
        **merged,
        "rounds": longest,
        "variants": variants,
        "algorithms": algorithms,
        "compared": list(names),
    }


def _baseline(asked: str | None, plan: Mapping[str, Any], first: Sweep, labels: Mapping[str, str]) -> str:
    methods: dict[str, str] = {variant["label"]: variant["method"] for variant in plan["variants"]}
    if asked is None:
        before = baseline_of(first.plan)
        return default_baseline(methods) if before is None else labels.get(before, default_baseline(methods))
    if asked in methods:
        return asked
    found = next((label for label, method in methods.items() if method == asked), None)
    if found is None:
        raise ComparisonError(f"there is no '{asked}' to compare with; the comparison has {', '.join(methods)}")
    return found


def _folds(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(group) for name, group in (plan.get("folds") or {}).items()} or {
        name: (name,) for name in plan["held_out"]
    }


def _fold_of(plan: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    return {name: frozenset(group) for group in _folds(plan).values() for name in group}


def _quoted(names: Sequence[str]) -> str:
    return listed([f"'{name}'" for name in names])


def _some(names: Sequence[str]) -> str:
    return listed(list(names)) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"
