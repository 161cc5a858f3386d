"""What happened in the runs and how far to trust them: failures, gaps, events, looks, versions."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import version

from farfield.protocol.selection import RULES
from farfield.report.collect import Sweep
from farfield.report.formats import plural, public, rule_label
from farfield.report.grid import Cell, Column, Grid
from farfield.report.metric_values import row_noun
from farfield.report.settings_section import Pairs

#: Kinds of events shown; a federation that drops every reply would fill a book otherwise.
SHOWN_EVENTS = 100
#: Missing runs that are named.
SHOWN_MISSING = 12


def failure_grid(sweep: Sweep) -> Grid | None:
    """Runs without a result, each with the reason; None where every run has one."""
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


def missing_text(sweep: Sweep) -> str:
    """Name the runs that were not started; empty where there are none."""
    have = {(r["algorithm"], r.get("fold") or r["held_out"], r["seed"]) for r in [*sweep.rows, *sweep.failures]}
    lacking = [
        f"{algorithm}, {held_out} held out, seed {seed}"
        for algorithm in sweep.plan["algorithms"]
        for held_out in sweep.plan.get("folds") or sweep.plan["held_out"]
        for seed in sweep.plan["seeds"]
        if (algorithm, held_out, seed) not in have
    ]
    if not lacking:
        return ""
    rest = f" and {len(lacking) - SHOWN_MISSING} more" if len(lacking) > SHOWN_MISSING else ""
    return f"{plural(len(lacking), 'run')} not started: {'; '.join(lacking[:SHOWN_MISSING])}{rest}."


def event_grid(sweep: Sweep) -> Grid | None:
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
        times = Cell(f"{len(rounds):,}", value=len(rounds))
        rows.append((Cell(algorithm), Cell(kind, phase), Cell(message), times, Cell(span, value=min(rounds))))
    columns = (
        Column(row_noun(sweep.plan), text=True),
        Column("event", text=True),
        Column("cause", text=True),
        Column("times"),
        Column("rounds"),
    )
    left = len(ordered) - SHOWN_EVENTS
    return Grid("Events", columns, tuple(rows), (f"{left} rarer kinds are not shown.",) if left > 0 else ())


def honesty_pairs(sweep: Sweep, rule: str) -> Pairs:
    """Return what a reader needs to judge the bench as a whole."""
    plan = sweep.plan
    there = sweep.completeness
    chose = [f"{rule_label(r)}: {RULES[r].description}." for r in plan["rules"]]
    runs = f"{there.done} of {there.runs} have a result; {there.failed} failed or did not finish"
    return [
        (
            "Held-out results opened",
            f"{plural(sweep.looks, 'time')}, this one included. Each look is a chance to tune on what was held out.",
        ),
        ("Rules that chose a round", [*chose, f"The answer at the top follows {rule_label(rule)}."]),
        ("Seeds", ", ".join(str(seed) for seed in plan["seeds"])),
        ("Runs", f"{runs}; {sweep.missing} missing."),
        (
            "p-values",
            "Runs that hold out different domains share most of their training domains, so they are not quite "
            "independent: read a p-value close to 0.05 as weak.",
        ),
        *(("Runs made with", text) for text in _run_versions(sweep)),
        *(("Clients computed on", text) for text in _run_devices(sweep)),
        *(("Engines", text) for text in _engines_of_their_own_bits(sweep)),
        (
            "Page written by",
            f"farfield {version('farfield')}, torch {version('torch')}, Python {platform.python_version()}",
        ),
    ]


def _run_devices(sweep: Sweep) -> list[str]:
    """The devices and precisions that the runs say they were made with; the last bits differ from one to the other."""
    known = [(row["device"], row.get("precision") or "float32") for row in sweep.rows if row.get("device")]
    return list(dict.fromkeys(f"{device}, in {precision}" for device, precision in known))


def _engines_of_their_own_bits(sweep: Sweep) -> list[str]:
    """The engines of runs where one of them may round otherwise than the others do."""
    engines = Counter(row["engine"] for row in sweep.rows if row.get("engine"))
    if not any("batched-func" in engine for engine in engines):
        return []
    told = "; ".join(f"{engine}: {plural(runs, 'run')}" for engine, runs in engines.items())
    return [f"{told}. On batched-func, layers other than linear ones differ from other engines in their last bits."]


def _run_versions(sweep: Sweep) -> list[str]:
    """The versions that the runs say they were made with; several if a bench was resumed after an upgrade."""
    known = [row["versions"] for row in sweep.rows if "versions" in row]
    return list(dict.fromkeys(", ".join(f"{name} {v}" for name, v in sorted(versions.items())) for versions in known))
