"""Which device a name stands for, and what is said where it cannot be used."""

from __future__ import annotations

import pytest
import torch

import farfield as ff
from farfield.reproducibility import devices
from farfield.reproducibility.devices import CPU, DeviceError, check_processes, device_named, devices_named
from farfield.runs.bench import runs_at_once
from farfield.runs.engines import BatchedEngine, LocalEngine
from farfield.runs.job import Job
from farfield.runs.processes import Silent
from farfield.runs.settings import PlanError
from farfield.runs.together.engine import run_on
from tests import toy

GPUS = tuple(torch.device("cuda", number) for number in range(2))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch say that it was built for CUDA and that the driver counts two GPUs."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cuda", "there is no CUDA device here: torch was built without CUDA; use --device cpu"),
        ("cuda:1", "there is no CUDA device here: torch was built without CUDA; use --device cpu"),
        ("mps", "there is no MPS device here: torch was built without MPS; use --device cpu"),
        ("gpu", "there is no device 'gpu'; say auto, cpu, cuda, cuda:N or mps"),
        ("cuda:-1", "there is no device 'cuda:-1'; say auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_a_device_that_is_not_here_is_refused_with_the_way_out(name: str, sentence: str) -> None:
    with pytest.raises(DeviceError) as refused:
        devices_named(name)
    assert str(refused.value) == sentence


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_cpu_where_there_is_nothing_else() -> None:
    assert devices_named("auto") == (CPU,)


@pytest.mark.usefixtures("two_gpus")
def test_cuda_is_every_gpu_and_a_number_is_one() -> None:
    assert devices_named("cuda") == devices_named("auto") == GPUS
    assert devices_named("cuda:1") == GPUS[1:]
    assert device_named("cuda") == GPUS[0]
    with pytest.raises(DeviceError, match=r"there is no device 'cuda:2' here: torch finds cuda:0 to cuda:1"):
        devices_named("cuda:2")


def test_a_build_for_cuda_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DeviceError, match="torch finds 0 devices; use --device cpu"):
        devices_named("cuda")


def test_apples_gpu_is_taken_by_auto_only_where_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "mps_problem", lambda: None)
    monkeypatch.setattr(devices, "cuda_count", lambda: 0)
    assert devices_named("auto") == (torch.device("mps", 0),)
    monkeypatch.setattr(devices, "cuda_count", lambda: 1)
    assert devices_named("auto") == (torch.device("cuda", 0),)


def test_a_program_that_uses_cuda_already_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    check_processes(GPUS, 1, "--parallel")
    with pytest.raises(DeviceError, match="uses CUDA already, and the 2 processes that it would fork cannot use it"):
        check_processes(GPUS, 2, "--parallel")
    with pytest.raises(DeviceError, match="one process at a time can use MPS; omit --parallel 2"):
        check_processes((torch.device("mps", 0),), 2, "--parallel")


def test_one_process_per_gpu_unless_asked_otherwise() -> None:
    assert runs_at_once("local", None, None, GPUS) == 2
    assert runs_at_once("local", None, 4, GPUS) == 4
    assert runs_at_once("local", None, None, GPUS[:1]) == 1


@pytest.mark.parametrize("engine", [LocalEngine(devices=GPUS), BatchedEngine(devices=GPUS)])
@pytest.mark.parametrize("parallel", [1, 2])
def test_run_i_goes_to_gpu_i_mod_n(engine: LocalEngine | BatchedEngine, parallel: int, tmp_path: object) -> None:
    jobs = [Job("fedavg", "a", seed) for seed in range(5)]

    def run(job: Job, watch: object, given: LocalEngine | BatchedEngine) -> None:
        assert given.devices == (GPUS[job.seed % 2],), f"run {job.seed} is on {given.devices}"

    assert run_on(engine, jobs, run, Silent(), parallel) == {}


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "flower"}, "on the engine 'flower' clients compute on the CPU; omit --device"),
        ({"workers": 2}, "on a GPU the clients of a run take turns in one process; omit --workers 2"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused_before_a_folder_is_made(
    options: dict[str, object], sentence: str, tmp_path: object
) -> None:
    with pytest.raises(PlanError, match=sentence):
        ff.bench(toy.task(), algorithms=["fedavg"], device="cuda", out=f"{tmp_path}/bench", **options)  # type: ignore[arg-type]


def test_methods_with_float64_at_clients_are_refused_on_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "mps_problem", lambda: None)
    with pytest.raises(DeviceError, match="the clients of fedilc-fishr compute in float64, which MPS does not have"):
        ff.bench(toy.task(), algorithms=["fedilc-fishr"], references=False, device="mps")


def test_results_say_where_they_were_made(tmp_path: object) -> None:
    bench = ff.bench(toy.task(), algorithms=["fedavg"], seeds=1, rounds=1, references=False, parallel=1, device="auto")
    assert {(row["device"], row["precision"]) for row in bench.rows} == {(devices_named("auto")[0].type, "float32")}
    page = bench.report(f"{tmp_path}/report.html").read_text()
    assert "Clients computed on" in page
    folder = ff.train(toy.task(), "fedavg", f"{tmp_path}/model", rounds=1)
    card = (folder / "README.md").read_text()
    assert "| device | cpu |" in card
    assert "| precision | float32 |" in card
