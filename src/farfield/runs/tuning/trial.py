"""What a trial came to, from the records of its runs: validation rows of source domains, and nothing else.

The trials' runs never measure the held-out domain, so there is nothing of it to read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from farfield.protocol.selection import InnerRow, SourceRow, choose, criterion, standing
from farfield.records import RunFolder
from farfield.runs.job import Job
from farfield.runs.plan import Plan

COMPLETE, DIVERGED, FAILED = "complete", "diverged", "failed"


def trial_row(
    plan: Plan, jobs: Sequence[Job], out: Path, settings: Mapping[str, Any], errors: Mapping[Job, str]
) -> dict[str, Any]:
    """Return the record of a trial whose runs have ended; the first job is the run in which all sources train."""
    assert plan.tuning is not None
    first = jobs[0]
    row: dict[str, Any] = {
        "number": first.trial,
        "algorithm": first.algorithm,
        "held_out": first.held_out,
        "seed": first.seed,
        "settings": dict(settings),
        "default": first.trial == 0,
        "metric": criterion(plan.tuning.metric),
        "rule": plan.tuning.by,
        "criterion": None,
    }
    failed = next((errors[job] for job in jobs if job in errors), None)
    if failed is not None:
        return {**row, "state": FAILED, "error": failed, "local_steps": None, "seconds": None}
    runs = [RunFolder(job.folder(out)) for job in jobs]
    results = [run.result or {} for run in runs]
    cost = {name: sum(result[name] for result in results) for name in ("local_steps", "seconds")}
    try:
        found = _judge(plan, runs[0], {str(j.inner): run for j, run in zip(jobs[1:], runs[1:], strict=True)})
    except ValueError as error:  # a run that diverged has no round to choose
        return {**row, **cost, "state": DIVERGED, "error": str(error)}
    return {**row, **cost, **found, "state": COMPLETE}


def _judge(plan: Plan, run: RunFolder, inner: Mapping[str, RunFolder]) -> dict[str, Any]:
    """Choose the round as the rule would, and return the criterion there."""
    assert plan.tuning is not None
    # By the loss: accuracies of few rows are equal too often to tell settings apart.
    metric = criterion(plan.tuning.metric)
    source = [SourceRow(r["round"], _domains(r["validation"])) for r in run.rounds() if "validation" in r]
    rows: dict[str, list[InnerRow]] = {}
    for unit, of in inner.items():
        for r in of.rounds():
            alone = {unit: r["inner"]} if "inner" in r else {}
            for domain, metrics in (alone | r.get("inner_domains", {})).items():
                rows.setdefault(domain, []).append(InnerRow(r["round"], _numbers(metrics)))
    chosen = choose(plan.tuning.by, metric, source, rows)
    if inner:
        by_domain = {d: next(r.metrics for r in of if r.round == chosen) for d, of in rows.items()}
    else:
        by_domain = dict(next(r.domains for r in source if r.round == chosen))
    found = standing("source-validation", metric, by_domain)  # of the chosen round, so there is one
    assert found is not None
    names = dict.fromkeys(name for of in by_domain.values() for name in of if name != "n")
    shared = [name for name in names if all(math.isfinite(of.get(name, math.nan)) for of in by_domain.values())]
    return {
        "round": chosen,
        "criterion": -found[0],
        "validation": {name: fmean(of[name] for of in by_domain.values()) for name in shared},
        "domains": {domain: of.get(metric, of["loss"]) for domain, of in by_domain.items()},
    }


def _domains(validation: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    return {domain: _numbers(metrics) for domain, metrics in validation.items()}


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Records hold null where a value was not finite."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def failed_sentence(label: str, held_out: str | None, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Say that no trial of a study can be used, and why; None where one can, or where none was made."""
    if not rows or best_trial(rows) is not None:
        return None
    where = f" with {held_out} held out" if held_out else ""
    return (
        f"{label} is not tuned{where}: none of its {len(rows)} trials can be used, so its settings stay as they were "
        f"({rows[0]['error']})"
    )


def best_trial(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the trial with the lowest criterion, the earliest of equals; None when no trial was complete."""
    complete = [row for row in rows if row["state"] == COMPLETE]
    return min(complete, key=lambda row: (row["criterion"], row["number"]), default=None)
