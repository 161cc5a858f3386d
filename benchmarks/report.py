"""Measure the time and the size of a large report: 30 methods × 6 domains × 5 seeds × 100 rounds.

    python benchmarks/report.py [--methods 30] [--domains 6] [--seeds 5] [--rounds 100]

Makes the folder of such a bench without training anything, reads it, and writes its page. Printed are the seconds of
reading (every sealed row is decoded) and of rendering, and the size of the page. The targets are 5 s and 8 MB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from farfield.diagnose.data_summary import DataSummary, DomainSummary
from farfield.records import RunFolder, write_config
from farfield.records.bench_folder import BENCH, DATA, FORMAT
from farfield.report.collect import collect
from farfield.report.page import write_report

METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "average_precision", "loss", "balanced_loss", "ece")


def make_bench(folder: Path, methods: int, domains: int, seeds: int, rounds: int) -> None:
    """Write a bench folder with random but plausible curves: every round is evaluated."""
    labels = ["fedavg", *(f"method-{i:02d}" for i in range(1, methods))]
    names = [f"hospital {chr(65 + i)}" for i in range(domains)]
    plan = {
        "format": FORMAT,
        "task": "synthetic",
        "data": "0" * 16,
        "kind": "classification",
        "metric": "auroc",
        "metric_reason": "the classes are unbalanced",
        "baseline": "fedavg",
        "variants": [{"label": label, "method": "fedavg", "settings": {}} for label in labels],
        "held_out": names,
        "seeds": list(range(seeds)),
        "rounds": rounds,
        "rounds_of": dict.fromkeys(labels, rounds),
        "partition": "domain",
        "validation": 0.1,
        "evaluate_every": 1,
        "rules": ["source-validation", "last", "oracle"],
        "quorum": 0.5,
        "model": {"featurizer": "mlp", "input_shape": [8], "outputs": 2, "hidden": [64], "norm": "average"},
        "settings": {label: {"lr": 0.1, "batch_size": 32} for label in labels},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder / BENCH, plan)
    sizes = tuple(DomainSummary(name=name, rows=1000, counts=(850, 150)) for name in names)
    data = DataSummary(task="synthetic", kind="classification", classes=("no", "yes"), domains=sizes, shape=(8,))
    (folder / DATA).write_text(data.model_dump_json())
    draw = np.random.default_rng(0)
    for m, label in enumerate(labels):
        for name in names:
            for seed in range(seeds):
                _make_run(folder, label, name, seed, rounds, 0.7 + 0.004 * m, draw, plan, names)


def _make_run(
    folder: Path,
    label: str,
    held_out: str,
    seed: int,
    rounds: int,
    level: float,
    draw: np.random.Generator,
    plan: dict[str, Any],
    names: list[str],
) -> None:
    run = RunFolder(folder / "runs" / label / held_out / f"seed-{seed}")
    run.create({"algorithm": label, "held_out": held_out, "seed": seed, "settings": plan["settings"][label]})
    rise = level * (1 - np.exp(-np.arange(1, rounds + 1) / 20))
    values = np.clip(rise[:, None] + draw.normal(0, 0.02, (rounds, len(METRICS))), 0.01, 0.99)
    rows, sealed = [], []
    for r in range(1, rounds + 1):
        metrics = {name: float(v) for name, v in zip(METRICS, values[r - 1], strict=True)}
        validation = {
            n: {"accuracy": metrics["accuracy"], "loss": metrics["loss"], "auroc": metrics["auroc"], "n": 100.0}
            | {"balanced_accuracy": metrics["accuracy"], "balanced_loss": metrics["loss"]}
            for n in names
            if n != held_out
        }
        rows.append({"round": r, "clients": len(names) - 1, "loss": 0.5, "diagnostics": {}, "validation": validation})
        sealed.append((r, metrics))
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for r, metrics in sealed:
        run.add_target(r, metrics)
    run.finish(
        {"algorithm": label, "held_out": held_out, "seed": seed, "rounds": rounds, "local_steps": 40 * rounds}
        | {"samples": 1280 * rounds, "bytes_up": 20000 * rounds, "bytes_down": 20000 * rounds, "seconds": 1.0}
        | {"server_seconds": 0.1, "peak_memory_mb": 300.0, "model_sha256": "0" * 64, "task": "synthetic"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("methods", 30), ("domains", 6), ("seeds", 5), ("rounds", 100)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "bench"
        make_bench(folder, options.methods, options.domains, options.seeds, options.rounds)
        started = _clocks()
        sweep = collect(folder, "benchmark")
        read = _clocks()
        page = write_report(sweep, folder / "report.html")
        written = _clocks()
        size = page.stat().st_size / 1e6
    shape = f"{options.methods} methods × {options.domains} domains × {options.seeds} seeds × {options.rounds} rounds"
    print(f"{shape}: read in {_spent(started, read)}, rendered in {_spent(read, written)}, {size:.2f} MB")


def _clocks() -> tuple[float, float]:
    """The time on the wall, and the processor's time, which other programs do not change."""
    return time.perf_counter(), time.process_time()


def _spent(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f"{end[0] - start[0]:.1f} s ({end[1] - start[1]:.1f} s of processor time)"


if __name__ == "__main__":
    main()
