"""Case A: many tiny clients, where a step is nearly all call overhead."""

from __future__ import annotations

import torch

from benchmarks.speed.case import Case, Options, Outcome
from benchmarks.speed.rounds import BATCHED, LOCAL, WORKERS, Rounds, measure
from farfield.models import ModelSpec

CLIENTS, ROWS = 100, 20


def run(options: Options) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((CLIENTS, ROWS, 1, 8, 8), generator=generator)
    y = torch.randint(10, (CLIENTS, ROWS), generator=generator)
    rounds = Rounds(
        network="mlp-64-64-10",
        spec=ModelSpec(featurizer="mlp", input_shape=(1, 8, 8), outputs=10, hidden=(64,)),
        x=x,
        y=y,
        batch=10,
        lr=0.05,
        engines=(BATCHED, LOCAL, WORKERS),
        goals={BATCHED: 0.12},
    )
    return measure(rounds, options, turns=60, peer_turns=12)


CASE = Case("tiny", "A tiny: cohort 100 × 20 rows, MLP 64-64-10, batch 10", run, letter="A")
