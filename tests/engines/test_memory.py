"""Ten thousand registered clients cost no more than a hundred: only those that take part leave a trace."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from farfield.algorithms import build
from farfield.federation import Client, Rows
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import build_model
from farfield.protocol.cohort import cohort
from farfield.tasks.clients.partition import Partition, Shard, make_clients
from tests.toy import SPEC, domain

ROUNDS = 4
ROOT = Path(__file__).parents[2]


def run(clients: int) -> LocalFederation:
    """Some rounds of SCAFFOLD, whose clients keep something, with ten of the clients at a time."""
    chosen = [domain("a", rows=10_000), domain("b", shift=0.5, rows=10_000)]
    made = make_clients(
        chosen, partition=Partition(kind="split"), clients=clients, validation=0.2, seed=0, kind="classification"
    )
    algorithm = build("scaffold", {"local_steps": 2})
    fed = LocalFederation(algorithm, build_model(SPEC, seed=0), Population(chosen, made), seed=0)
    with fed:
        state = algorithm.start(build_model(SPEC, seed=0).state())
        for number in range(1, ROUNDS + 1):
            fed.begin(number, cohort(0, number, fed.clients, 10))
            state = algorithm.round(fed, state)
    return fed


def counted(*kinds: type) -> int:
    gc.collect()
    return sum(1 for o in gc.get_objects() if type(o) in kinds)


@pytest.mark.slow
def test_only_clients_that_took_part_are_remembered() -> None:
    objects, tensors = counted(Client, Rows, Shard), counted(torch.Tensor)
    fed = run(10_000)
    taken = {c for number in range(1, ROUNDS + 1) for c in cohort(0, number, 10_000, 10)}
    assert fed.clients == 10_000
    assert set(fed.states) == taken
    assert 10 < len(taken) <= 10 * ROUNDS
    assert counted(Client, Rows, Shard) == objects
    # One control variate for each client that took part, the rows and their owners, and the resident model.
    assert counted(torch.Tensor) - tensors < 2 * 10 * ROUNDS


def peak_kilobytes(clients: int) -> int:
    script = (
        "import json, re, tests.engines.test_memory as m\n"
        f"fed = m.run({clients})\n"
        "peak = int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "print(json.dumps([fed.clients, len(fed.states), peak]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    registered, remembered, peak = json.loads(done.stdout.splitlines()[-1])
    assert registered == clients
    assert remembered <= 10 * ROUNDS
    return int(peak)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of a process from /proc")
def test_ten_thousand_clients_need_no_more_memory_than_a_hundred() -> None:
    few, many = peak_kilobytes(100), peak_kilobytes(10_000)
    assert abs(many - few) < 20 * 1024
