"""A small bench on disk, and a second reader of its records that shares no code with the package."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

from farfield.diagnose.data_summary import DataSummary, DomainSummary
from farfield.records import RunFolder, write_config
from farfield.records.bench_folder import BENCH, DATA, FORMAT

METHODS = ("fedavg", "fedprox", "scaffold", "fediir+fedomg:kappa=0.5,with-a-rather-long-label-that-must-not-be-cut")
DOMAINS = ("north", "south", "east", "west")
SEEDS = (0, 1, 2)
ROUNDS = 6
RULES = ("source-validation", "last", "oracle")


def write_bench(folder: Path) -> Path:
    """Write a finished bench with random numbers: every round is evaluated."""
    folder.mkdir(parents=True)
    plan = {
        "format": FORMAT,
        "task": "made by hand",
        "data": "0123456789abcdef",
        "kind": "classification",
        "metric": "accuracy",
        "metric_reason": "the classes are balanced",
        "baseline": "fedavg",
        "variants": [{"label": m, "method": m.split(":")[0], "settings": {}} for m in METHODS],
        "held_out": list(DOMAINS),
        "seeds": list(SEEDS),
        "rounds": ROUNDS,
        "rounds_of": dict.fromkeys(METHODS, ROUNDS),
        "partition": "domain",
        "validation": 0.1,
        "evaluate_every": 1,
        "rules": list(RULES),
        "quorum": 0.5,
        "model": {"featurizer": "mlp", "input_shape": [8], "outputs": 2, "hidden": [64], "norm": "average"},
        "settings": {m: {"lr": 0.1} for m in METHODS},
    }
    write_config(folder / BENCH, plan)
    sizes = tuple(DomainSummary(name=name, rows=100, counts=(60, 40)) for name in DOMAINS)
    data = DataSummary(task="made by hand", kind="classification", classes=("no", "yes"), domains=sizes, shape=(8,))
    (folder / DATA).write_text(data.model_dump_json())
    draw = random.Random(7)
    for m, method in enumerate(METHODS):
        for domain in DOMAINS:
            for seed in SEEDS:
                _write_run(folder, method, domain, seed, 0.6 + 0.05 * m, draw)
    return folder


def _write_run(folder: Path, method: str, held_out: str, seed: int, level: float, draw: random.Random) -> None:
    run = RunFolder(folder / "runs" / method.split(":")[0] / held_out / f"seed-{seed}")
    run.create({"algorithm": method, "held_out": held_out, "seed": seed, "settings": {"lr": 0.1}})
    for r in range(1, ROUNDS + 1):
        own = {
            name: {"accuracy": level + draw.uniform(0, 0.2), "loss": draw.uniform(0.3, 0.7), "n": 10.0}
            for name in DOMAINS
            if name != held_out
        }
        run.add_round({"round": r, "clients": 3, "loss": 0.5, "diagnostics": {}, "validation": own})
        auroc = draw.uniform(0.6, 0.9)
        sealed = {"accuracy": level + draw.uniform(-0.1, 0.1), "loss": draw.uniform(0.4, 0.8), "auroc": auroc}
        run.add_target(r, {**sealed, "site": _site(auroc, draw)})
    cost = {"rounds": ROUNDS, "local_steps": 120, "samples": 3840, "bytes_up": 250_000, "bytes_down": 300_000}
    run.finish(
        {"algorithm": method, "held_out": held_out, "seed": seed, "task": "made by hand", **cost, "seconds": 1.5}
    )


def _site(auroc: float, draw: random.Random) -> dict[str, Any]:
    bins = [
        {"low": i / 5, "high": (i + 1) / 5, "rows": 20, "mean_score": (i + 0.5) / 5, "share": draw.uniform(0, 1)}
        for i in range(5)
    ]
    thresholds = [i / 20 for i in range(1, 10)]
    return {
        "rows": 100,
        "events": 40,
        "classes": {"no": 60, "yes": 40},
        "unseen": {},
        "auroc": {"value": auroc, "low": auroc - 0.1, "high": auroc + 0.08},
        "calibration": {"slope": draw.uniform(0.5, 1.5), "intercept": draw.uniform(-1, 1), "bins": bins},
        "brier": draw.uniform(0.1, 0.3),
        "decision": {
            "thresholds": thresholds,
            "net_benefit": [0.3 - 0.3 * t for t in thresholds],
            "treat_all": [0.4 - (1 - 0.4) * t / (1 - t) for t in thresholds],
        },
        "confusion": [[50, 10], [15, 25]],
        "too_thin": None,
    }


Run = tuple[str, str, int]


def read_records(folder: Path) -> tuple[dict[Run, dict[int, dict[str, Any]]], dict[Run, dict[int, dict[str, Any]]]]:
    """Read held-out metrics and validation by run and round, from the lines of the files alone."""
    target: dict[Run, dict[int, dict[str, Any]]] = {}
    source: dict[Run, dict[int, dict[str, Any]]] = {}
    for sealed in folder.rglob("target.sealed.jsonl"):
        result = json.loads((sealed.parent / "result.json").read_text())
        run = (result["algorithm"], result["held_out"], result["seed"])
        target[run] = {}
        for line in sealed.read_text().splitlines():
            row = json.loads(line)
            target[run][row["round"]] = {**_opened(row["sealed"]), "site": _opened(row["site"])}
        rows = [json.loads(line) for line in (sealed.parent / "rounds.jsonl").read_text().splitlines()]
        source[run] = {row["round"]: row["validation"] for row in rows}
    return target, source


def _opened(text: str) -> dict[str, Any]:
    """Decode a sealed text: a prefix up to the colon, then compressed JSON in base 64."""
    content = json.loads(zlib.decompress(base64.b64decode(text.rpartition(":")[2])))
    assert isinstance(content, dict)
    return content
