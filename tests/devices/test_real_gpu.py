"""For whoever has a GPU (`make gpu`): rounds on it against rounds on the CPU, memory, several GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from farfield.algorithms import build, method
from farfield.federation import device_rows
from farfield.models import ModelSpec
from farfield.reproducibility.devices import CPU, computing_on, cuda_count, mps_problem
from tests import toy
from tests.battery import methods
from tests.devices.test_rounds_on_a_gpu import CONVNET, ENGINES, rounds

HAS_CUDA = cuda_count() > 0
DEVICE = torch.device("cuda", 0) if HAS_CUDA else torch.device("mps", 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_CUDA and mps_problem() is not None, reason="there is no GPU here, CUDA's or Apple's"),
]
#: Two rounds of a few steps from the same weights: sums in another order, and nothing else.
TOLERANCE = 1e-4


def comparable(name: str) -> bool:
    return DEVICE.type == "cuda" or not any(method(part).float64_at_clients for part in name.split("+"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [*methods.single(), *methods.one_per_server_half("devices")])
def test_rounds_are_those_of_the_cpu_within_rounding(name: str, engine: str) -> None:
    if not comparable(name):
        pytest.skip("MPS has no float64")
    algorithm = build(name, methods.SETTINGS, 2)
    with computing_on(DEVICE):
        there, figures = rounds(algorithm, DEVICE, engine)
    assert there.parameters.device == CPU
    assert bool(torch.isfinite(there.parameters).all())
    here, _ = rounds(algorithm, CPU, engine)
    assert torch.allclose(there.parameters, here.parameters, atol=TOLERANCE, rtol=TOLERANCE)
    with computing_on(DEVICE):
        again, same = rounds(algorithm, DEVICE, engine)
    assert torch.equal(there.parameters, again.parameters)
    assert figures == same


def test_a_convolutional_model_is_within_rounding() -> None:
    spec = CONVNET.model_copy(update={"dropout": 0.0})
    algorithm = build("fedavg", methods.SETTINGS, 2)
    with computing_on(DEVICE):
        there, _ = rounds(algorithm, DEVICE, spec=spec, augment="standard")
    here, _ = rounds(algorithm, CPU, spec=spec, augment="standard")
    assert torch.allclose(there.parameters, here.parameters, atol=1e-3, rtol=1e-3)


def test_streamed_rows_give_the_bits_of_resident_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build("fedavg", methods.SETTINGS, 2)
    with computing_on(DEVICE):
        resident, _ = rounds(algorithm, DEVICE)
        monkeypatch.setattr(device_rows, "free_memory", lambda device: 0)
        monkeypatch.setattr(device_rows, "_ROWS", {})
        streamed, _ = rounds(algorithm, DEVICE)
    assert torch.equal(resident.parameters, streamed.parameters)


def test_free_memory_is_a_number_of_bytes() -> None:
    assert device_rows.free_memory(DEVICE) > 1 << 20


def bench(out: Path, **options: Any) -> dict[Any, Any]:
    found = ff.bench(
        toy.task(), algorithms=["fedavg", "scaffold"], seeds=1, rounds=2, references=False, out=out, **options
    )
    assert not found.failures
    return {(row["algorithm"], row["held_out"]): row for row in found.rows}


def test_a_bench_names_the_device_and_scores_as_on_the_cpu(tmp_path: Path) -> None:
    there = bench(tmp_path / "gpu", device=f"{DEVICE}" if HAS_CUDA else "mps", parallel=1)
    here = bench(tmp_path / "cpu", parallel=1)
    for key, row in there.items():
        assert row["device"].startswith(DEVICE.type)
        mine, theirs = (of["selection"]["last"]["loss"] for of in (row, here[key]))
        assert mine == pytest.approx(theirs, rel=1e-2)


#: Runs of a bench are forked, and this process can no longer fork: it uses CUDA and has a pretended device.
IN_TURN = """
import sys
import farfield as ff
from tests import toy
if __name__ == "__main__":
    found = ff.bench(
        toy.task(), algorithms=["fedavg", "scaffold"], seeds=1, rounds=2, references=False, out=sys.argv[1],
        device=sys.argv[2], engine=sys.argv[3], parallel=2,
    )
    print(len(found.rows), *sorted({row["device"].partition(" ")[0] for row in found.rows}), *found.failures)
"""


def in_turn(out: Path, device: str, engine: str) -> list[str]:
    """Make a bench of six runs in two processes of a program of its own; return their number and their devices."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, "-c", IN_TURN, str(out), device, engine],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.mark.skipif(cuda_count() < 2, reason="there are not two CUDA devices here")
@pytest.mark.parametrize("engine", ["local", "batched"])
def test_runs_take_the_gpus_in_turn(engine: str, tmp_path: Path) -> None:
    devices = [f"cuda:{number}" for number in range(min(6, cuda_count()))]
    assert in_turn(tmp_path / "out", "cuda", engine) == ["6", *sorted(devices)]


@pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device here")
@pytest.mark.parametrize("engine", ["local", "batched"])
def test_processes_share_one_gpu(engine: str, tmp_path: Path) -> None:
    assert in_turn(tmp_path / "out", "cuda:0", engine) == ["6", "cuda:0"]


@pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device here")
def test_bfloat16_trains_on_a_gpu(tmp_path: Path) -> None:
    task = toy.task(model=ModelSpec(input_shape=(4,), outputs=3, hidden=(64, 64)))
    found = ff.bench(
        task,
        algorithms=["fedavg"],
        seeds=1,
        rounds=2,
        references=False,
        out=tmp_path / "out",
        device="cuda:0",
        precision="bfloat16",
        parallel=1,
    )
    assert {row["precision"] for row in found.rows} == {"bfloat16"}
