"""Case B: a cross-device cohort with a small convolutional net."""

from __future__ import annotations

from benchmarks.speed.case import Case, Options, Outcome
from benchmarks.speed.mnist import mnist_clients
from benchmarks.speed.rounds import LOCAL, WORKERS, Rounds, measure
from farfield.models import ModelSpec

CLIENTS, ROWS = 50, 50


def run(options: Options) -> Outcome:
    x, y = mnist_clients(*((10, 20) if options.short else (CLIENTS, ROWS)))
    rounds = Rounds(
        network="two-convolutions",
        spec=ModelSpec(featurizer="convnet", input_shape=(1, 28, 28), outputs=10, hidden=(16, 32)),
        x=x,
        y=y,
        batch=10,
        lr=0.05,
        engines=(LOCAL, WORKERS),
        goals={LOCAL: 1.02, WORKERS: 0.52},
    )
    return measure(rounds, options, turns=15, peer_turns=6)


CASE = Case("cross-device", "B cross-device: cohort 50 × 50 MNIST images, two convolutions, batch 10", run, letter="B")
