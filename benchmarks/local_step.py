"""What a method adds to a local step: FedIIR with a linear head against FedAvg, and a naive double backward beside it.

    python benchmarks/local_step.py
    python benchmarks/local_step.py --json local_step.json

All three train the same model on the same mini-batches of one client, in turns in one process on one thread, and the
ratio to FedAvg is taken within each turn. Goal for FedIIR's closed form: at most 1.15.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms import build
from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.fediir import FedIIR
from farfield.federation.client import Batch, Client, Rows
from farfield.models import Model, ModelSpec, build_model, task_loss
from farfield.tasks.task import Domain

GOAL = 1.15
SPECS = {
    "mlp 64-64-10": (ModelSpec(input_shape=(1, 8, 8), outputs=10, hidden=(64, 64)), 32, 640),
    "convnet 128-10": (
        ModelSpec(featurizer="convnet", input_shape=(1, 28, 28), outputs=10, hidden=(16, 32, 128), norm="group"),
        64,
        640,
    ),
}


class DoubleBackward(FedIIR):
    """FedIIR as it is usually written: the head's gradient by autograd, differentiated once more."""

    local_gradient = FedAvg.local_gradient

    def loss(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        risk = task_loss(model(batch.x), batch.y)
        parts = torch.autograd.grad(risk, list(model.head.parameters()), create_graph=True)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        return risk + self.params.gamma / 2 * (gradient - shared["target"]).square().sum()


def measure(spec: ModelSpec, batch: int, rows: int, turns: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    domain = Domain(
        "d", torch.rand((rows, *spec.input_shape), generator=generator), torch.randint(10, (rows,), generator=generator)
    )
    model = build_model(spec, 0)
    start = model.state()
    head = model.layout.head
    target = 0.01 * torch.randn(head.stop - head.start, generator=generator)
    settings = {"lr": 0.01, "batch_size": batch}
    methods: dict[str, FedAvg] = {
        "fedavg": build("fedavg", settings),
        "fediir": build("fediir", settings),
        "double backward": DoubleBackward(FedIIR.Params(**settings)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(turns + 2):
        # Who comes first in a turn changes: what the one before leaves in the caches must not favour anybody.
        shift = turn % len(methods)
        for name, method in [*methods.items()][shift:] + [*methods.items()][:shift]:
            taken = Rows({"d": domain}, [("d", torch.arange(rows))])
            client = Client(0, "d", "d", taken, taken, seed=0, round=turn + 1, phase="train")
            model.load(start)
            shared = {} if name == "fedavg" else {"target": target}
            started = time.perf_counter()
            method.train(client, model, **shared)
            if turn >= 2:  # the first turns load code and warm caches
                seconds[name].append((time.perf_counter() - started) / client.steps)
    return {
        name: statistics.median(own / base for own, base in zip(times, seconds["fedavg"], strict=True))
        for name, times in seconds.items()
    } | {"fedavg_ms": 1e3 * statistics.median(seconds["fedavg"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: measure(*spec, arguments.turns) for name, spec in SPECS.items()}
    for name, r in results.items():
        verdict = "goal met" if r["fediir"] <= GOAL else "goal missed"
        print(
            f"{name:15s} FedAvg {r['fedavg_ms']:6.3f} ms a step; FedIIR {r['fediir']:.3f} times that "
            f"({verdict}: at most {GOAL:.2f}); naive double backward {r['double backward']:.3f} times"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
