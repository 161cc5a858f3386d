"""What the federation costs: a FedAvg round against a bare PyTorch loop over the same batches, on one thread.

    python -m benchmarks.overhead            # two ratios: a conv net and an MLP
    python -m benchmarks.overhead --json overhead.json

The bare loop has no clients, no averaging, no checks: one `torch.optim.SGD`, one model, the same mini-batches in the
same order. Both are measured in turns in one process, and the ratio is taken within each turn, so that a machine that
is busy for a while slows both. Goal: at most 1.10.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.interleaved import interleaved
from farfield.algorithms import build
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import ModelSpec, build_model
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain

GOAL = 1.10
CLIENTS, ROWS, BATCH, LR = 5, 640, 32, 0.05
SPECS = {
    "mlp": ModelSpec(featurizer="mlp", input_shape=(1, 8, 8), outputs=10, hidden=(64, 64)),
    "convnet": ModelSpec(featurizer="convnet", input_shape=(1, 28, 28), outputs=10, hidden=(16, 32), norm="group"),
}


def measure(spec: ModelSpec, turns: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    domains = [
        Domain(
            f"d{i}",
            torch.rand((ROWS, *spec.input_shape), generator=generator),
            torch.randint(spec.outputs, (ROWS,), generator=generator),
        )
        for i in range(CLIENTS)
    ]
    clients = make_clients(
        domains, partition=Partition(kind="domain"), clients=None, validation=0.1, seed=0, kind="classification"
    )
    algorithm = build("fedavg", {"lr": LR, "batch_size": BATCH})
    population = Population(domains, clients)
    model = build_model(spec, seed=0)
    bare_model = build_model(spec, seed=0)
    bare = nn.Sequential(bare_model.featurizer, bare_model.head)
    with LocalFederation(algorithm, model, population, seed=0) as fed:
        state = algorithm.start(model.state())

        def federated(turn: int) -> Callable[[], Any]:
            def timed() -> None:
                nonlocal state
                state = algorithm.round(fed, state)

            fed.begin(turn + 1, range(CLIENTS))
            return timed

        def alone(turn: int) -> Callable[[], Any]:
            batches = _batches(population, turn + 1, domains)
            return lambda: _bare_loop(bare, batches)

        timings = interleaved({"round": federated, "bare loop": alone}, turns)
    return {
        "ratio": timings.ratio("round", "bare loop").median,
        "round_ms": 1e3 * timings.median("round"),
        "bare_ms": 1e3 * timings.median("bare loop"),
        "steps": CLIENTS * -(-clients_rows(population) // BATCH),
    }


def clients_rows(population: Population) -> int:
    return population.client(0, seed=0, round=1, phase="train", state={}).samples


def _batches(population: Population, number: int, domains: list[Domain]) -> list[tuple[Domain, torch.Tensor]]:
    """The rows of every mini-batch of the round, drawn as the clients draw them."""
    batches = []
    for c in range(CLIENTS):
        client = population.client(c, seed=0, round=number, phase="train", state={})
        rows = client.training.rows_of(domains[c].name)
        order = rows[torch.randperm(client.samples, generator=client.generator("batches"))]
        batches += [(domains[c], order[i : i + BATCH]) for i in range(0, len(order), BATCH)]
    return batches


def _bare_loop(model: nn.Module, batches: list[tuple[Domain, torch.Tensor]]) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for domain, rows in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(domain.x[rows]), domain.y[rows]).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: measure(spec, arguments.turns) for name, spec in SPECS.items()}
    for name, r in results.items():
        verdict = "goal met" if r["ratio"] <= GOAL else "goal missed"
        print(
            f"{name:8s} FedAvg round {r['round_ms']:7.2f} ms, bare loop {r['bare_ms']:7.2f} ms, {r['steps']} steps: "
            f"ratio {r['ratio']:.3f} ({verdict}: at most {GOAL:.2f})"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
