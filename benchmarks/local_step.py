"""What a method adds to a local step: FedIIR with a linear head against FedAvg, and a naive double backward beside it.

    python -m benchmarks.local_step
    python -m benchmarks.local_step --json local_step.json

All three train the same model on the same mini-batches of one client, in turns in one process on one thread, and the
ratio to FedAvg is taken within each turn. Goal for FedIIR's closed form: at most 1.15.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.interleaved import Timings, interleaved
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


def timings_of(spec: ModelSpec, batch: int, rows: int, turns: int) -> Timings:
    """Let FedAvg, FedIIR and a naive FedIIR train the same client in turns."""
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

    def train(name: str, turn: int) -> Callable[[], Any]:
        taken = Rows({"d": domain}, [("d", torch.arange(rows))])
        client = Client(0, "d", "d", taken, taken, seed=0, round=turn + 1, phase="train")
        model.load(start)
        shared = {} if name == "fedavg" else {"target": target}
        return lambda: methods[name].train(client, model, **shared)

    return interleaved({name: partial(train, name) for name in methods}, turns)


def measure(spec: ModelSpec, batch: int, rows: int, turns: int) -> dict[str, float]:
    timings = timings_of(spec, batch, rows, turns)
    steps = -(-rows // batch)
    ratios = {name: timings.ratio(name, "fedavg").median for name in timings.seconds}
    return ratios | {"fedavg_ms": 1e3 * timings.median("fedavg") / steps}


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
