"""Case C: a few silos with FedIIR's network, where a step is nearly all arithmetic."""

from __future__ import annotations

from benchmarks.speed.case import Case, Options, Outcome
from benchmarks.speed.mnist import mnist_clients
from benchmarks.speed.rounds import LOCAL, WORKERS, Rounds, measure
from farfield.models import ModelSpec

CLIENTS, ROWS = 5, 600


def run(options: Options) -> Outcome:
    x, y = mnist_clients(*((2, 64) if options.short else (CLIENTS, ROWS)))
    rounds = Rounds(
        network="fediir-convnet",
        spec=ModelSpec(
            featurizer="mnist-cnn", input_shape=(1, 28, 28), outputs=10, hidden=(64, 128, 128, 128), norm="group"
        ),
        x=x,
        y=y,
        batch=64,
        lr=0.01,
        engines=(LOCAL, WORKERS),
        goals={LOCAL: 1.02, WORKERS: 0.56},
    )
    return measure(rounds, options, turns=6, peer_turns=3)


CASE = Case("silo", "C silo: 5 × 600 MNIST images, FedIIR's ConvNet, batch 64", run, letter="C")
