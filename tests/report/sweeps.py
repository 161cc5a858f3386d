"""Sweeps made by hand, small enough to check with a pencil."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield.report.collect import Curve, Sweep

Scores = Mapping[str, Mapping[str, Sequence[float | None]]]

RULES = ("source-validation", "last", "oracle")


def plan(
    algorithms: Sequence[str],
    held_out: Sequence[str],
    seeds: Sequence[int],
    kind: str = "classification",
    **changes: Any,
) -> dict[str, Any]:
    """A plan as it is read back from its TOML: no key for what is not set."""
    return {
        "task": "toy",
        "kind": kind,
        "algorithms": list(algorithms),
        "variants": [{"label": name, "method": name, "settings": {}} for name in algorithms],
        "held_out": list(held_out),
        "seeds": list(seeds),
        "rounds": 20,
        "partition": "domain",
        "validation": 0.1,
        "evaluate_every": 10,
        "rules": list(RULES),
        "metric": "accuracy" if kind == "classification" else "rmse",
        "metric_reason": "it was asked for",
        "quorum": 0.5,
        "model": {"featurizer": "mlp", "input_shape": [8], "outputs": 2, "hidden": [64], "norm": "average"},
        "settings": {
            name: {"lr": 0.1, "batch_size": 32, **({"mu": 0.01} if name == "fedprox" else {})} for name in algorithms
        },
        **changes,
    }


def sweep(scores: Scores, kind: str = "classification", *, seeds: Sequence[int] | None = None, **changes: Any) -> Sweep:
    """A sweep from the headline metric per method, held-out domain and seed.

    A list that is shorter than the number of seeds leaves the later seeds without a run. The other rules get the same
    values; `oracle` one hundredth more. `changes` replace fields of the sweep; those that a plan has go there.
    """
    held_out = list(dict.fromkeys(domain for of in scores.values() for domain in of))
    if seeds is None:
        seeds = range(max(len(values) for of in scores.values() for values in of.values()))
    rows, curves = [], []
    for algorithm, of in scores.items():
        for domain, values in of.items():
            for seed, value in zip(seeds, values, strict=False):
                rows.append(row(algorithm, domain, seed, value, kind))
                curves.append(curve(algorithm, domain, seed, value, kind))
    fields = {"failures": [], "events": [], "missing": 0, "looks": 1, "rows": rows, "curves": curves}
    fields |= {name: changes.pop(name) for name in list(changes) if name in fields}
    return Sweep(folder=Path("/nowhere/at all"), plan=plan(list(scores), held_out, seeds, kind, **changes), **fields)


def row(algorithm: str, held_out: str, seed: int, value: float | None, kind: str = "classification") -> dict[str, Any]:
    metrics: dict[str, Any]
    if kind == "classification":
        metrics = {"accuracy": value, "macro_f1": value, "loss": 0.5, "auroc": 0.75, "ece": 0.1, "brier": 0.2}
    else:
        metrics = {"rmse": value, "loss": _squared(value), "mae": None if value is None else value / 2, "r2": 0.5}
    best = dict(metrics)
    if value is not None and kind == "classification":
        best["accuracy"] = value + 0.01
    return {
        "algorithm": algorithm,
        "held_out": held_out,
        "inner": None,
        "seed": seed,
        "task": "toy",
        "rounds": 20,
        "clients": 3,
        "norm": "average",
        "local_steps": 1200,
        "samples": 38400,
        "bytes_up": 2_500_000,
        "bytes_down": 3_000_000,
        "bytes_up_by_phase": {"train": 2_400_000, "evaluate": 100_000},
        "bytes_down_by_phase": {"train": 2_000_000, "evaluate": 1_000_000},
        "seconds": 1.5,
        "server_seconds": 0.25,
        "peak_memory_mb": 410.0,
        "events": 0,
        "model_sha256": "0" * 64,
        "selection": {
            "source-validation": {"round": 20, **metrics},
            "last": {"round": 20, **metrics},
            "oracle": {"round": 10, **best},
        },
    }


def curve(
    algorithm: str, held_out: str, seed: int, value: float | None, kind: str = "classification", rounds: int = 20
) -> Curve:
    """Held-out values that come half way in round 10; validation is a tenth higher."""
    metric = "accuracy" if kind == "classification" else "rmse"

    def at(r: int) -> float | None:
        return None if value is None else value * (0.5 if r == 10 else 1.0)

    recorded = [
        {"round": r, "clients": 3, "loss": 0.6, "validation": {"other": {metric: 0.1 + (at(r) or math.nan), "n": 10.0}}}
        if r % 10 == 0
        else {"round": r, "clients": 3, "loss": 0.6}
        for r in range(1, rounds + 1)
    ]
    target: list[tuple[int, dict[str, Any]]] = [(r, {metric: at(r)}) for r in (10, rounds)]
    return Curve(algorithm, held_out, seed, recorded, target)


def _squared(value: float | None) -> float | None:
    return None if value is None else value**2
