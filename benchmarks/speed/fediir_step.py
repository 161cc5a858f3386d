"""FedIIR's local step with a linear head, in closed form, against FedAvg's and against a naive double backward."""

from __future__ import annotations

import torch

from benchmarks.local_step import GOAL, SPECS, timings_of
from benchmarks.speed.case import Case, Figure, Options, Outcome


def run(options: Options) -> Outcome:
    torch.set_num_threads(1)
    figures, seconds = [], {}
    for name, (spec, batch, rows) in SPECS.items():
        timings = timings_of(spec, batch, rows, options.turns(40))
        figures.append(Figure.of(f"{name}: FedIIR / FedAvg", timings.ratio("fediir", "fedavg"), GOAL))
        figures.append(Figure.of(f"{name}: naive / FedAvg", timings.ratio("double backward", "fedavg")))
        seconds |= {f"{name}: {method}": value for method, value in timings.medians().items()}
    return Outcome(tuple(figures), (), seconds)


CASE = Case("fediir-step", "FedIIR's step with a linear head", run)
