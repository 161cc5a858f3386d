"""What is said before a long bench: runs, time, and what a smaller one would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.runs import bench as bench_module
from farfield.runs import estimate as module
from farfield.runs.dry_run import dry_run
from farfield.runs.estimate import Estimate, duration, estimate, is_long
from farfield.runs.plan import Job, Plan, make_plan
from farfield.runs.tuning.request import Tuning
from tests.toy import task


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (40, "40 s"), (170, "3 min"), (7800, "2 h 10 min"), (7200, "2 h"), (86400, "24 h"), (3e5, "3 days")],
)
def test_times_are_told_in_units_that_fit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def a_run_takes(setup: float, each: dict[str, float]) -> Callable[..., list[float]]:
    def times(plan: Plan, task: Any, job: Job, limit: float) -> list[float]:
        return [setup + each[job.algorithm], setup + 2 * each[job.algorithm]]

    return times


def test_time_is_setup_and_rounds_of_every_run_over_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(task(4), algorithms=["fedavg", "scaffold"], seeds=3, rounds=10)
    monkeypatch.setattr(module, "_times", a_run_takes(5.0, {"fedavg": 2.0, "scaffold": 4.0}))
    jobs = list(plan.jobs(task(4)))
    found = estimate(plan, task(4), jobs, at_once=2)
    assert (found.runs, found.probed) == (24, 2)
    assert found.seconds == pytest.approx(12 * ((5 + 20) + (5 + 40)) / 2)
    assert found.sentence == (
        "24 runs to go, 2 at a time: about 7 min (2 rounds of 2 methods were timed); about 2 min with --seeds 1"
    )


def test_methods_that_could_not_be_probed_are_taken_to_be_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(task(4), algorithms=["fedavg", "scaffold"], seeds=1, rounds=10)
    monkeypatch.setattr(module, "_times", lambda plan, task, job, limit: [1.0] if job.algorithm == "fedavg" else [])
    found = estimate(plan, task(4), list(plan.jobs(task(4))), at_once=1)
    assert found.seconds == pytest.approx(8 * 10)


def test_many_folds_and_seeds_have_a_smaller_bench() -> None:
    plan = make_plan(task(12), algorithms=["fedavg"], seeds=2)
    found = estimate(plan, task(12), list(plan.jobs(task(12))), at_once=1, probe=False)
    assert found.smaller == (("--seeds 1", 0.5), ("--folds 5", 5 / 12))
    assert found.sentence == "24 runs to go, 1 at a time; the time left is shown when the first are done"


def test_a_task_of_many_rows_has_a_smaller_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_ROWS", 20)
    plan = make_plan(task(3), algorithms=["fedavg"], seeds=1)
    found = estimate(plan, task(3), list(plan.jobs(task(3))), at_once=1, probe=False)
    assert found.smaller == (("--rows 20", 20 / (40 + 48 + 56)),)


def test_a_probe_measures_real_rounds_and_leaves_nothing() -> None:
    plan = make_plan(task(3), algorithms=["fedavg"], seeds=1, rounds=50)
    times = module._times(plan, task(3), Job("fedavg", "a", 0), limit=1e12)
    assert len(times) == module.PROBED_ROUNDS
    assert 0 < times[0] < times[1]


def test_short_benches_are_not_announced() -> None:
    plan = make_plan(task(3), algorithms=["fedavg"], seeds=1, rounds=2)
    assert not is_long(plan, task(3), list(plan.jobs(task(3))))
    assert not Estimate(60, 1, 59.0, 1).worth_telling
    assert Estimate(61, 1, None, 0).worth_telling
    assert Estimate(2, 1, 61.0, 1).worth_telling


def test_a_long_bench_tells_its_estimate_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "is_long", lambda plan, task, jobs: True)
    monkeypatch.setattr(module, "_times", a_run_takes(0.0, {"fedavg": 1000.0}))
    told: list[str] = []
    ff.bench(task(3), ["fedavg"], held_out=["a"], seeds=1, rounds=1, out=tmp_path / "b", tell=told.append)
    assert told == ["1 run to go, 1 at a time: about 17 min (2 rounds of 1 method were timed)"]


def test_a_dry_run_says_what_would_be_done_and_leaves_nothing(tmp_path: Path) -> None:
    ff.bench(task(4), ["fedavg"], held_out=["a"], seeds=1, rounds=2, out=tmp_path / "b")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    options: dict[str, Any] = {"algorithms": ["fedsgd"], "seeds": 2}
    found = dry_run(task(4), options, tmp_path / "b", resume=True, probe=False)
    assert found.added == ("method fedsgd", "seed 1")
    assert (found.runs, found.estimate.runs) == (4, 3)
    assert "runs: 4, of which 1 are there" in found.lines()
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    with pytest.raises(UserError, match="holds another bench"):
        dry_run(task(4), {"algorithms": ["fedsgd"]}, tmp_path / "b", probe=False)


def test_trials_of_the_tuning_count(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(task(4), algorithms=["fedavg", "scaffold"], seeds=1, rounds=10, tuning=Tuning(trials=5))
    monkeypatch.setattr(module, "_times", a_run_takes(0.0, {"fedavg": 1.0, "scaffold": 1.0}))
    found = estimate(plan, task(4), list(plan.jobs(task(4))), at_once=1)
    assert found.trials == 5 * 2 * 4
    assert found.seconds == pytest.approx(10 * (8 + 40))
    assert found.sentence.startswith("8 runs and 40 trials of the tuning to go, 1 at a time: about 8 min")
