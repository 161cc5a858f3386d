"""What goes wrong in a run is neither hidden nor allowed to spoil what comes after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, registry
from farfield.algorithms.scaffold import Scaffold
from farfield.records import RecordsError, RunFolder
from farfield.runs.bench import bench
from farfield.runs.plan import Job, folder_name, make_plan
from farfield.runs.single_run import run_job
from farfield.tasks.task import Task
from tests.toy import domain, domains, task


class Flaky(Scaffold):
    """SCAFFOLD whose clients are away in round 2, but for one."""

    name = "flaky-for-a-test"

    def train(self, client: Any, model: Any, **shared: Any) -> Any:
        reply = super().train(client, model, **shared)
        if client.round == 2 and client.id != 0:
            raise OSError("away")
        return reply


@pytest.fixture
def flaky() -> Any:
    registry.register(Flaky)
    yield
    registry._METHODS.pop("flaky-for-a-test")


def test_a_round_without_its_quorum_leaves_no_trace_at_the_clients_that_replied(flaky: None, tmp_path: Path) -> None:
    """SCAFFOLD's server control is the mean of the clients', always: a skipped round must not move either."""
    problem = task(4)
    plan = make_plan(problem, algorithms=["flaky-for-a-test"], held_out=["d"], seeds=1, rounds=3)
    run_job(plan, problem, Job("flaky-for-a-test", "d", 0), tmp_path, checkpoint_every=1)
    for checkpoint in RunFolder(tmp_path).checkpoints():
        controls = torch.stack([checkpoint.tensors[f"client/{c}/control"] for c in range(3)])
        torch.testing.assert_close(controls.mean(dim=0), checkpoint.tensors["extra/control"], rtol=1e-4, atol=1e-6)
    events = RunFolder(tmp_path).events()
    assert [e["round"] for e in events if e["kind"] == "round-skipped"] == [2]
    assert sum(e["kind"] == "reply-dropped" for e in events) == 2


def test_rows_that_a_crash_has_lost_are_computed_again(tmp_path: Path) -> None:
    problem = task(3)
    plan = make_plan(problem, algorithms=["fedavg"], held_out=["c"], seeds=1, rounds=6)
    job = Job("fedavg", "c", 0)
    whole = run_job(plan, problem, job, tmp_path, checkpoint_every=2)
    rows = (tmp_path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "result.json").unlink()
    (tmp_path / "rounds.jsonl").write_text("".join(rows[:4]))
    assert run_job(plan, problem, job, tmp_path, checkpoint_every=2)["model_sha256"] == whole["model_sha256"]
    assert [json.loads(line)["round"] for line in (tmp_path / "rounds.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


SLOW = """
import sys, time
from pathlib import Path
from tests.toy import task
from farfield.algorithms import FedAvg, register
from farfield.runs.engines import LocalEngine
from farfield.runs.single_run import run_job
from farfield.runs.plan import Job, make_plan

@register
class Slow(FedAvg):
    name = "slow-for-a-test"
    def train(self, client, model, **shared):
        Path(sys.argv[1], f"busy-{client.id}").touch()
        time.sleep(60)

problem = task(3)
plan = make_plan(problem, algorithms=["slow-for-a-test"], held_out=["c"], seeds=1, rounds=1)
run_job(plan, problem, Job("slow-for-a-test", "c", 0), Path(sys.argv[1]) / "run", engine=LocalEngine(2))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux only")
def test_workers_of_a_killed_run_do_not_hold_its_folder(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "src")])
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], env={**os.environ, "PYTHONPATH": path})
    limit = time.monotonic() + 60
    while len(list(tmp_path.glob("busy-*"))) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with RunFolder(tmp_path / "run").writing(patience=10):
        assert (tmp_path / "run" / "config.toml").exists()


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path).writing(),
        pytest.raises(RecordsError, match="another process"),
        RunFolder(tmp_path).writing(patience=0.2),
    ):
        pass


@pytest.mark.parametrize("name", ["..", ".", "", ".hidden", "a/b", "x" * 300, "São Paulo", "[/red]", "a%2Fb"])
def test_any_domain_name_makes_one_ordinary_folder(name: str, tmp_path: Path) -> None:
    made = tmp_path / folder_name(name)
    made.mkdir()
    assert made.resolve().parent == tmp_path.resolve()
    assert len(made.name.encode()) < 200
    assert folder_name(name) != folder_name(name + "!")


def test_names_with_dots_slashes_and_markup_pass_through_a_whole_bench(tmp_path: Path) -> None:
    chosen = [domain(name, shift=0.3 * i) for i, name in enumerate(["..", "[/x] b/c", "São Paulo <script>"])]
    base = task(3)
    odd = Task(base.name, base.kind, tuple(chosen), base.classes, base.model, base.defaults)
    result = bench(odd, ["fedavg", "fedprox"], seeds=1, rounds=2, out=tmp_path / "b")
    assert {(r["algorithm"], r["held_out"]) for r in result.rows} == {
        (a, d.name) for a in ("fedavg", "fedprox") for d in chosen
    }
    assert len({r["model_sha256"] for r in result.rows}) == 6
    assert "Paulo <script>" not in result.report().read_text()


@pytest.mark.slow
def test_a_method_that_failed_somewhere_gets_no_verdict_from_its_survivors(tmp_path: Path) -> None:
    result = bench(task(4), ["fedavg", "fedprox"], seeds=2, rounds=2, out=tmp_path / "b", settings={"fedprox.mu": 50.0})
    lines = {line.algorithm: line for line in result.results().lines}
    assert lines["fedprox"].difference is not None
    (tmp_path / "b/runs/fedprox/a/seed-0/result.json").unlink()
    from farfield.report.collect import collect
    from farfield.report.tables import result_table

    sweep = collect(tmp_path / "b", "test")
    line = next(x for x in result_table(sweep, "source-validation").lines if x.algorithm == "fedprox")
    assert line.difference is not None
    assert line.difference.verdict == "too few to say"
    assert len(sweep.failures) == 1


class Broken(FedAvg):
    """A method that always fails."""

    name = "broken-for-a-test"

    def round(self, fed: Any, state: Any) -> Any:
        raise ArithmeticError("no way")


def test_a_method_that_always_fails_does_not_end_the_comparison(tmp_path: Path) -> None:
    registry.register(Broken)
    try:
        out = tmp_path / "b"
        result = bench(task(3), ["fedavg", "broken-for-a-test", "fedprox"], seeds=1, rounds=1, out=out, parallel=2)
    finally:
        registry._METHODS.pop("broken-for-a-test")
    assert {row["algorithm"] for row in result.rows} == {"fedavg", "fedprox"}
    assert [failure["error"] for failure in result.failures] == ["ArithmeticError: no way"] * 3
    lines = {line.algorithm: line for line in result.results().lines}
    assert (lines["broken-for-a-test"].failed, lines["fedprox"].runs) == (3, 3)
    assert result.sweep.completeness.sentence.startswith("6 of 9 runs are done, 3 failed or stopped halfway; 0 of 3")
    assert "no way" in result.report().read_text()


def test_a_missing_inner_run_is_named_and_its_rule_does_not_choose(tmp_path: Path) -> None:
    bench(task(3), ["fedavg"], seeds=1, rounds=2, rules=["leave-one-domain-out", "last"], out=tmp_path / "b")
    (tmp_path / "b/runs/fedavg/a/inner-b/seed-0/result.json").unlink()
    from farfield.report.collect import collect

    sweep = collect(tmp_path / "b", "test")
    assert [f["held_out"] for f in sweep.failures] == ["a", "a"]
    assert {r["held_out"] for r in sweep.rows} == {"b", "c"}


def test_a_size_that_is_misspelt_is_refused_when_the_method_is_defined() -> None:
    from farfield.federation import Sends

    with pytest.raises(ValueError, match="did you mean 'parameters'"):
        Sends("paramters", "an update")


def test_training_uses_all_domains_also_for_its_checks(tmp_path: Path) -> None:
    from farfield.trained.training import train

    train(task(3), "fedavg", tmp_path / "m", rounds=2, cohort=3)
    assert len(domains(3)) == 3
    one = task(1)
    train(one, "fedavg", tmp_path / "one", rounds=2)
    assert (tmp_path / "one" / "model.safetensors").exists()


def test_a_bench_that_is_running_cannot_be_replaced_or_joined(tmp_path: Path) -> None:
    from farfield.runs.sweep import open_sweep

    plan = make_plan(task(3), algorithms=["fedavg"], seeds=1, rounds=2)
    with open_sweep(plan, tmp_path / "b", resume=False):
        for options in ({"resume": False, "fresh": True}, {"resume": True}):
            with (
                pytest.raises(RecordsError, match="another process is writing"),
                open_sweep(plan, tmp_path / "b", **options),
            ):
                pass
    with open_sweep(plan, tmp_path / "b", resume=True):
        pass


def test_a_fresh_bench_keeps_the_count_of_looks(tmp_path: Path) -> None:
    from farfield.records.sealed import count_look, looks
    from farfield.runs.sweep import open_sweep

    plan = make_plan(task(3), algorithms=["fedavg"], seeds=1, rounds=2)
    with open_sweep(plan, tmp_path / "b", resume=False):
        count_look(tmp_path / "b", "bench")
    with open_sweep(plan, tmp_path / "b", resume=False, fresh=True):
        assert looks(tmp_path / "b") == 1


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda x, y: (x.index_fill(0, torch.tensor([7]), float("nan")), y), "not finite in row 8"),
        (lambda x, y: (x, y.index_fill(0, torch.tensor([0]), 3)), "class numbers from 0 to 2"),
        (lambda x, y: (x.double(), y), "float64"),
        (lambda x, y: (x[:, :2], y), "shape"),
        (lambda x, y: (x, y.float()), "class numbers"),
    ],
)
def test_rows_that_cannot_be_used_are_named_before_anything_runs(change: Any, phrase: str) -> None:
    from farfield.runs.settings import PlanError
    from farfield.tasks.task import Domain

    base = task(3)
    bad = Domain("b", *change(base.domains[1].x, base.domains[1].y))
    odd = Task(base.name, base.kind, (base.domains[0], bad, base.domains[2]), base.classes, base.model, base.defaults)
    with pytest.raises(PlanError, match=phrase) as caught:
        make_plan(odd, algorithms=["fedavg"], seeds=1)
    assert "domain 'b'" in str(caught.value)
