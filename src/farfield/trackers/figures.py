"""What trackers are told, as flat names and numbers."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farfield.records.atomic import write_json
from farfield.records.bench_folder import TRACKERS
from farfield.runs.job import Job, folder_name
from farfield.runs.plan import Plan

#: In the folder that trackers keep with a bench: the bench's name for trackers, new with every `--fresh`.
IDENTITY = "identity.json"


def round_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a round's figures by name.

    `clients` is the number of clients that were asked. `validation/mean/…` is the mean over the source domains, each
    with the same weight; a metric that some domain lacks in this round has no mean. The mean is over metrics, so `n`,
    the rows of a domain, is left out of it.
    """
    figures: dict[str, Any] = {"clients": row.get("clients"), "loss": row.get("loss")}
    domains = _mapping(row.get("validation"))
    for domain, metrics in domains.items():
        figures |= {f"validation/{domain}/{name}": value for name, value in _mapping(metrics).items()}
    for name in {name for metrics in domains.values() for name in _mapping(metrics)} - {"n"}:
        values = [_mapping(metrics).get(name) for metrics in domains.values()]
        numbers: list[float] = [value for value in values if value is not None and _is_number(value)]
        if len(numbers) == len(values):
            figures[f"validation/mean/{name}"] = sum(numbers) / len(numbers)
    figures |= {f"diagnostics/{name}": value for name, value in _mapping(row.get("diagnostics")).items()}
    return {name: float(value) for name, value in figures.items() if _is_number(value)}


def cost_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return what a run cost: steps, samples, bytes, seconds, memory."""
    names = ("local_steps", "samples", "bytes_up", "bytes_down", "seconds", "server_seconds", "peak_memory_mb")
    return {f"cost/{name}": float(result[name]) for name in names if _is_number(result.get(name))}


def held_out_figures(row: Mapping[str, Any]) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Return for each selection rule the round that it chose and the held-out figures of that round."""
    for rule, chosen in row["selection"].items():
        yield (
            rule,
            int(chosen["round"]),
            {name: float(value) for name, value in chosen.items() if name != "round" and _is_number(value)},
        )


def run_of(row: Mapping[str, Any]) -> Job:
    """Return the run that a row of the result is from; domains that are held out together have one run."""
    return Job(row["algorithm"], row.get("fold") or row["held_out"], row["seed"])


def held_out_prefix(row: Mapping[str, Any], rule: str) -> str:
    """Return what stands before the held-out figures of a row, with the domain where its run holds out several."""
    domain = "" if run_of(row).held_out == row["held_out"] else f"{row['held_out']}/"
    return f"held_out/{rule}/{domain}"


def run_name(job: Job) -> str:
    """Return a run's name, which can be a path: `fedavg/domain/seed-0`."""
    parts = [folder_name(job.algorithm, keep="+=")]
    parts += [] if job.held_out is None else [folder_name(job.held_out)]
    return "/".join([*parts, f"seed-{job.seed}"])


def run_settings(plan: Plan, job: Job) -> dict[str, str | int | float | bool]:
    """Return what a run was made with, by flat names."""
    settings = {
        "task": plan.task,
        "algorithm": job.algorithm,
        "method": plan.variant(job.algorithm).method,
        "held_out": job.held_out,
        "seed": job.seed,
        "rounds": plan.rounds_of[job.algorithm],
        "partition": plan.partition,
        "data": plan.data,
        **{f"settings.{name}": value for name, value in plan.settings_of(job).items()},
    }
    return {
        name: value if isinstance(value, str | int | float | bool) else json.dumps(value)
        for name, value in settings.items()
        if value is not None
    }


def bench_identity(folder: Path) -> str:
    """Return the bench's name for trackers: a bench that is resumed has the one that it had."""
    path = folder / TRACKERS / IDENTITY
    try:
        return str(json.loads(path.read_text())["bench"])
    except (OSError, ValueError, KeyError, TypeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = uuid.uuid4().hex[:12]
        write_json(path, {"bench": identity})
        return identity


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
