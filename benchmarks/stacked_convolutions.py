"""Local steps of networks that only `torch.func` can stack: a cohort as one stack, against client by client.

    python benchmarks/stacked_convolutions.py
    python benchmarks/stacked_convolutions.py --turns 9 --clients 5,20 --json stacked.json

FedAvg's local training of a cohort, two mini-batches per client, served by the batched engine with and without
`functional`: what `--engine batched-func` and `--engine batched` do. Both are measured in turns in one process on one
thread, and the ratio is the median of the ratios within a turn. Over 1, the stack is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from farfield.algorithms import build
from farfield.federation.client import Client
from farfield.federation.engines.batched.planned_client import RowPool
from farfield.federation.engines.batched.requests import Request, serve
from farfield.federation.population import Population
from farfield.models import ModelSpec, build_model
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain

STEPS = 2
DIGITS, MNIST = (1, 8, 8), (1, 28, 28)
SPECS = {
    "FedIIR's ConvNet 64-128-128-128, GroupNorm, 28 × 28": ModelSpec(
        featurizer="mnist-cnn", input_shape=MNIST, outputs=10, hidden=(64, 128, 128, 128), norm="group"
    ),
    "two convolutions 32-64 and 512, 28 × 28": ModelSpec(
        featurizer="fedavg-cnn", input_shape=MNIST, outputs=10, hidden=(32, 64, 512)
    ),
    "convnet 16-32, 28 × 28": ModelSpec(featurizer="convnet", input_shape=MNIST, outputs=10, hidden=(16, 32)),
    "convnet 8-16, 8 × 8": ModelSpec(featurizer="convnet", input_shape=DIGITS, outputs=10, hidden=(8, 16)),
    "convnet 16-32, GroupNorm, 8 × 8": ModelSpec(
        featurizer="convnet", input_shape=DIGITS, outputs=10, hidden=(16, 32), norm="group"
    ),
    "MLP 64-64, GroupNorm": ModelSpec(input_shape=DIGITS, outputs=10, hidden=(64, 64), norm="group"),
}


def request_of(spec: ModelSpec, clients: int, batch: int) -> Request:
    """The training of a cohort whose clients have as many rows each."""
    random = torch.Generator().manual_seed(0)
    rows = 2 * STEPS * batch  # half of them are for validation
    domains = [
        Domain(
            f"d{number}",
            torch.rand((rows, *spec.input_shape), generator=random),
            torch.arange(rows) % spec.outputs,
        )
        for number in range(clients)
    ]
    made = make_clients(
        domains, partition=Partition(kind="domain"), clients=None, validation=0.5, seed=0, kind="classification"
    )
    people = Population(domains, made)
    algorithm = build("fedavg", {"batch_size": batch, "local_steps": STEPS, "lr": 0.01})
    model = build_model(spec, 0)

    def client(number: int) -> Client:
        return people.client(number, seed=0, round=1, phase="train", state={})

    return Request(algorithm, "train", model, model.state(), {}, range(clients), client, functional=True)


def measure(spec: ModelSpec, clients: int, batch: int, turns: int) -> dict[str, float]:
    """Return milliseconds per client and step, of both, and the median of the ratios."""
    stacked = request_of(spec, clients, batch)
    both, pool = (replace(stacked, functional=False), stacked), RowPool()
    times: list[list[float]] = []
    for turn in range(turns + 1):
        took = []
        for request in both:
            started = time.perf_counter()
            outcomes = serve([request], pool)[0]
            took.append(1000 * (time.perf_counter() - started) / clients / STEPS)
            assert not any(outcome.problem or outcome.note for outcome in outcomes)
        times += [took] if turn else []  # the first turn warms up
    return {
        "one by one": statistics.median(alone for alone, _ in times),
        "stack": statistics.median(stack for _, stack in times),
        "ratio": statistics.median(alone / stack for alone, stack in times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clients", default="5,20,50")
    parser.add_argument("--batches", default="10,64")
    parser.add_argument("--models", default="", help="only models whose name has this in it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name, spec in SPECS.items():
        if options.models not in name:
            continue
        for batch in map(int, options.batches.split(",")):
            for clients in map(int, options.clients.split(",")):
                figures = measure(spec, clients, batch, options.turns)
                found.append({"model": name, "batch": batch, "clients": clients, **figures})
                told = f"{figures['one by one']:8.2f} ms  {figures['stack']:8.2f} ms  {figures['ratio']:5.2f}"
                print(f"{name:52} batch {batch:3} clients {clients:3} {told}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
