"""What registered clients cost that do not take part: 100 against 10,000, with a cohort of ten."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.interleaved import Spread, interleaved
from benchmarks.speed.case import Case, Figure, Options, Outcome
from farfield.algorithms import build
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import ModelSpec, build_model
from farfield.protocol.cohort import cohort
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain

FEW, MANY, COHORT, STEPS = 100, 10_000, 10, 10
#: The same rows in both, so that only the number of clients differs.
ROWS = 200_000
SPEC = ModelSpec(featurizer="mlp", input_shape=(1, 8, 8), outputs=10, hidden=(64, 64))
ROOT = Path(__file__).parents[2]


class Rounds:
    """FedAvg with a cohort of so many registered clients."""

    def __init__(self, clients: int) -> None:
        generator = torch.Generator().manual_seed(0)
        domain = Domain(
            "d",
            torch.rand((ROWS, *SPEC.input_shape), generator=generator),
            torch.randint(10, (ROWS,), generator=generator),
        )
        made = make_clients(
            [domain], partition=Partition(kind="split"), clients=clients, validation=0.1, seed=0, kind="classification"
        )
        # Equal local steps: a client of the few has more rows, and would train longer.
        self._algorithm = build("fedavg", {"lr": 0.05, "batch_size": 10, "local_steps": STEPS})
        model = build_model(SPEC, seed=0)
        self.federation = LocalFederation(self._algorithm, model, Population([domain], made), seed=0)
        self._state = self._algorithm.start(model.state())

    def turn(self, number: int) -> Callable[[], Any]:
        return partial(self.round, number + 1)

    def round(self, number: int) -> None:
        self.federation.begin(number, cohort(0, number, self.federation.clients, COHORT))
        self._state = self._algorithm.round(self.federation, self._state)


def peak_megabytes(clients: int, rounds: int) -> float:
    """Return the peak memory of a process that makes so many rounds."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.registered_clients", str(clients), str(rounds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def run(options: Options) -> Outcome:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        few, many = Rounds(FEW), Rounds(MANY)
        stack.enter_context(few.federation)
        stack.enter_context(many.federation)
        timings = interleaved({"many": many.turn, "few": few.turn}, options.turns(60))
    ratio = timings.ratio("many", "few")
    figures = [
        Figure.of("seconds per round, 10,000 / 100 clients", ratio, 1.10),
    ]
    if Path("/proc/self/status").exists():
        pairs = [(peak_megabytes(MANY, 20), peak_megabytes(FEW, 20)) for _ in range(1 if options.short else 3)]
        figures.append(Figure.of("peak memory, 10,000 / 100 clients", Spread.of([m / f for m, f in pairs]), 1.10))
    return Outcome(tuple(figures), (), timings.medians())


def main(clients: int, rounds: int) -> None:
    torch.set_num_threads(1)
    made = Rounds(clients)
    with made.federation:
        for number in range(1, rounds + 1):
            made.round(number)
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    print(int(peak[1]) / 1024)


CASE = Case("registered-clients", "100 → 10,000 registered clients, cohort 10", run)

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
