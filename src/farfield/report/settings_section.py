"""What a bench was made with: its plan, model, variants and parameters, and the command that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from farfield.models import NORM_POLICIES
from farfield.report.formats import MISSING, public, rule_label, setting, settings_text
from farfield.report.grid import Cell, Column, Grid
from farfield.report.metric_values import row_noun
from farfield.tasks import names

Pairs = list[tuple[str, str | list[str]]]

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


def plan_pairs(plan: Mapping[str, Any]) -> Pairs:
    """Return the plan by name and value, in words."""
    listed: Pairs = [
        ("task", public(plan["task"])),
        (f"{row_noun(plan)}s", ", ".join(plan["algorithms"])),
        ("held out, one at a time", ", ".join(plan.get("folds") or plan["held_out"])),
        ("seeds", ", ".join(str(seed) for seed in plan["seeds"])),
        ("selection rules", ", ".join(rule_label(rule) for rule in plan["rules"])),
    ]
    for key, label in _PLAN.items():
        value = plan.get(key)
        listed.append((label, _UNSET.get(key, "not set") if value is None else setting(value)))
    if plan.get("metric_reason"):
        listed.append(("why this metric leads", public(str(plan["metric_reason"]))))
    if plan.get("data"):
        listed.append(("hash of the data", str(plan["data"])))
    return listed


def model_pairs(model: Mapping[str, Any]) -> Pairs:
    return [(key.replace("_", " "), setting(value)) for key, value in model.items()]


def norm_policy(model: Mapping[str, Any]) -> tuple[str, str]:
    """The norm policy and what it means, for a client that was never there too."""
    norm = model.get("norm", "none")
    return norm, NORM_POLICIES.get(norm, "a policy that this version of farfield does not know")


def variant_grid(variants: Sequence[Mapping[str, Any]]) -> Grid | None:
    """What each variant is: its method and its own settings. None when all are methods under their own names."""
    if all(v["label"] == v["method"] and not v["settings"] for v in variants):
        return None
    rows = tuple((Cell(v["label"]), Cell(v["method"]), Cell(settings_text(v["settings"]) or MISSING)) for v in variants)
    columns = (Column("variant", text=True), Column("method", text=True), Column("own settings", text=True))
    return Grid("Variants", columns, rows)


def shared_pairs(settings: Mapping[str, Mapping[str, Any]]) -> Pairs:
    """Parameters that every variant has, with the same value."""
    first = next(iter(settings.values()), {})
    same = [k for k, v in first.items() if all(k in of and of[k] == v for of in settings.values())]
    return [(key, setting(first[key])) for key in same]


def own_grid(settings: Mapping[str, Mapping[str, Any]], noun: str) -> Grid | None:
    """The parameters in which methods or variants differ, one column per parameter; None when there are none."""
    shared = {key for key, _ in shared_pairs(settings)}
    keys = [key for key in dict.fromkeys(k for of in settings.values() for k in of) if key not in shared]
    if not keys:
        return None
    rows = tuple(
        (Cell(name), *(Cell(setting(of[key])) if key in of else Cell(MISSING, tone="missing") for key in keys))
        for name, of in settings.items()
    )
    return Grid("Parameters that differ", (Column(noun, text=True), *(Column(key) for key in keys)), rows)


def command(plan: Mapping[str, Any]) -> str:
    """Return the commands that made the bench, as they were typed, without the folders of files.

    Of a bench from Python it is a command made from the plan, which does not hold the path of a user's own data: FILE
    and COLUMN stand for it and for its columns.
    """
    if plan.get("commands"):
        return "\n".join(public(typed) for typed in plan["commands"])
    named = plan["task"] in names()
    task = [public(plan["task"])] if named else ["--data", "FILE", "--label", "COLUMN", "--domain", "COLUMN"]
    variants = [
        v["label"] if v["label"].startswith(f"{v['method']}:") or not v["settings"] else _typed(v)
        for v in plan["variants"]
    ]
    words = ["farfield", "bench", *task, "--algorithms", ",".join(variants)]
    groups = (plan.get("folds") or {}).values()
    held_out = ["+".join(group) for group in groups] or plan["held_out"]
    words += [
        "--held-out",
        ",".join(held_out),
        "--seeds",
        ",".join(str(seed) for seed in plan["seeds"]) + ("," if len(plan["seeds"]) == 1 else ""),
    ]
    words += ["--rounds", str(plan["rounds"]), "--evaluate-every", str(plan["evaluate_every"])]
    words += ["--select", ",".join(plan["rules"])]
    for key in ("metric", "baseline", "clients", "cohort"):
        if plan.get(key) is not None:
            words += [f"--{key}", str(plan[key])]
    return shlex.join(words)


def _typed(variant: Mapping[str, Any]) -> str:
    return f"{variant['method']}:{settings_text(variant['settings']).replace(', ', ',')}"
