"""What a run learns of its rows comes from its sources' training rows: never from validation rows or the target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import farfield as ff
from farfield.errors import UserError
from farfield.runs.plan import Job, Plan, make_plan
from farfield.runs.run_data import run_data
from farfield.runs.settings import PlanError
from farfield.tasks.task import Task
from farfield.tasks.user_data.preparation import FittedTable
from tests.tasks.tables import visits, write


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return ff.read_table(write(visits(90), tmp_path / "visits.csv"), label="died", domain="hospital")


def plan_of(task: Task, **options: object) -> Plan:
    return make_plan(task, algorithms=["fedavg"], **options)  # type: ignore[arg-type]


JOB = Job("fedavg", "west", seed=3)


def fitted(task: Task, job: Job = JOB, **options: object) -> FittedTable:
    found = run_data(plan_of(task, **options), task, job).fitted
    assert isinstance(found, FittedTable)
    return found


def training_values(task: Task, column: int, job: Job = JOB) -> np.ndarray:
    data = run_data(plan_of(task), task, job)
    parts = [task.domain(name).x[rows, column] for shard in data.clients for name, rows in shard.train]
    return torch.cat(parts).numpy()


def test_statistics_are_those_of_the_sources_training_rows(task: Task) -> None:
    age = fitted(task).columns[0]
    values = training_values(task, 0)
    assert len(values) == 2 * 27  # 30 rows a hospital, a tenth of them for validation
    assert (age.mean, age.scale) == pytest.approx((values.mean(), values.std()), rel=1e-12)
    # Two sites with as many rows each: the middle of their medians.
    assert age.fill == pytest.approx((np.median(values[:27]) + np.median(values[27:])) / 2, rel=1e-12)
    pressure = fitted(task).columns[3]
    values = training_values(task, 3)
    assert np.isnan(values).any()
    assert pressure.mean == pytest.approx(np.nanmean(values), rel=1e-12)
    known = [int((~np.isnan(part)).sum()) for part in (values[:27], values[27:])]
    assert known[0] != known[1]
    larger = values[:27] if known[0] > known[1] else values[27:]
    assert pressure.fill == np.nanmedian(larger)


def _with_rows(task: Task, name: str, rows: torch.Tensor) -> Task:
    """The task with other numbers in these rows of a domain."""
    x = task.domain(name).x.clone()
    for column in (0, 3):  # age and pressure
        x[rows, column] = x[rows, column] * 1000 + 7
    return replace(task, domains=tuple(replace(d, x=x) if d.name == name else d for d in task.domains))


def test_rows_of_the_held_out_domain_change_nothing(task: Task) -> None:
    changed = _with_rows(task, "west", torch.arange(30))
    assert fitted(changed) == fitted(task)
    assert fitted(changed, Job("fedavg", "north", 3)) != fitted(task, Job("fedavg", "north", 3))


def test_validation_rows_change_nothing(task: Task) -> None:
    shards = run_data(plan_of(task), task, JOB).clients
    ((name, rows),) = shards[0].validation
    assert fitted(_with_rows(task, name, rows)) == fitted(task)
    ((name, rows),) = shards[0].train
    assert fitted(_with_rows(task, name, rows[:1])) != fitted(task)


def test_a_domain_held_out_inside_changes_nothing_either(task: Task) -> None:
    inner = Job("fedavg", "west", 3, inner="south")
    changed = _with_rows(_with_rows(task, "south", torch.arange(30)), "west", torch.arange(30))
    assert fitted(changed, inner) == fitted(task, inner)


def test_how_rows_are_dealt_out_changes_nothing(task: Task) -> None:
    assert fitted(task, clients=6) == fitted(task)
    assert fitted(task, partition="iid", clients=4) == fitted(task)
    pooled = run_data(make_plan(task, algorithms=["erm"]), task, Job("erm", "west", 3)).fitted
    assert pooled == fitted(task)


def test_sources_and_target_are_prepared_alike(task: Task) -> None:
    data = run_data(plan_of(task), task, JOB)
    (target,) = data.targets
    assert data.fitted is not None
    assert torch.equal(target.x, data.fitted.apply(task.domain("west").x))
    for domain in (*data.sources, target):
        assert domain.x.dtype == torch.float32
        assert domain.x.shape[1:] == task.model.input_shape
        assert torch.isfinite(domain.x).all()


def test_a_bench_records_the_preparation_of_each_run_and_the_notes(task: Task, tmp_path: Path) -> None:
    noted = replace(task, notes=("column 'country' was left out",))
    result = ff.bench(noted, algorithms=["fedavg"], seeds=1, rounds=2, held_out=["west"], out=tmp_path / "b")
    saved = json.loads((tmp_path / "b/runs/fedavg/west/seed-0/preparation.json").read_text())
    assert FittedTable.from_json(saved) == fitted(task, Job("fedavg", "west", 0))
    assert "column 'country' was left out" in (tmp_path / "b" / "bench.toml").read_text()
    assert "column &#39;country&#39; was left out" in result.report().read_text()


def test_a_bench_is_not_resumed_on_other_data(task: Task, tmp_path: Path) -> None:
    options = {"algorithms": ["fedavg"], "seeds": 1, "rounds": 2, "held_out": ["west"], "out": tmp_path / "b"}
    ff.bench(task, **options)  # type: ignore[arg-type]
    frame = visits(90)
    frame.loc[4, "age"] += 1
    other = ff.read_table(write(frame, tmp_path / "visits.csv"), label="died", domain="hospital")
    with pytest.raises(UserError, match=r"data is .* there and .* here"):
        ff.bench(other, resume=True, **options)  # type: ignore[arg-type]


def test_a_task_can_say_what_is_held_out(task: Task) -> None:
    chosen = replace(task, held_out=("west",))
    assert make_plan(chosen).held_out == ("west",)
    assert make_plan(chosen, held_out=["all"]).held_out == task.domain_names
    assert make_plan(chosen, held_out=["north"]).held_out == ("north",)


def test_rows_that_do_not_fit_the_preparation_are_refused_before_any_work(task: Task) -> None:
    bad = replace(task.domains[0], x=task.domains[0].x[:, :2].contiguous())
    with pytest.raises(PlanError, match=r"domain 'north': raw rows are float64 with 4 columns"):
        make_plan(replace(task, domains=(bad, *task.domains[1:])))
    with pytest.raises(PlanError, match=r"examples of shape \(8,\), the model takes \(9,\)"):
        make_plan(task, settings={"model.input_shape": [9]})


def test_a_regression_is_measured_in_the_units_of_its_label(tmp_path: Path) -> None:
    """A slope of 1000 on one column: in scaled units the error would be under 1, and untrained it is in millions."""
    draw = np.random.default_rng(0)
    domains = {}
    for name in "abc":
        x = draw.normal(50, 10, (80, 1))
        domains[name] = (x, 1000 * x[:, 0] + 20_000)
    task = ff.task_from_arrays("line", domains)
    result = ff.bench(
        task,
        algorithms=["fedavg"],
        seeds=1,
        rounds=30,
        held_out=["c"],
        out=tmp_path / "b",
        settings={"model.featurizer": "identity", "model.hidden": []},
    )
    spread = float(np.var(domains["c"][1]))
    loss = result.rows[0]["selection"]["last"]["loss"]
    assert 0 < loss < 0.01 * spread


def test_predicting_raw_rows_gives_what_the_bench_measures(task: Task, tmp_path: Path) -> None:
    ff.train(task, "fedavg", tmp_path / "m", rounds=3)
    trained = ff.load_model(tmp_path / "m")
    frame = visits(90)
    west = frame[frame["hospital"] == "west"].drop(columns=["died", "hospital"])
    x, notes = trained.read(write(west, tmp_path / "rows.csv"))
    assert notes == ()
    assert trained.preparation is not None
    assert torch.equal(x, trained.preparation.apply(task.domain("west").x))
    data = run_data(make_plan(task, algorithms=["fedavg"], all_train=True), task, Job("fedavg", None, 0))
    assert torch.equal(trained.outputs(x), trained.outputs(next(d for d in data.sources if d.name == "west").x))


def test_a_model_folder_without_its_preparation_is_refused(task: Task, tmp_path: Path) -> None:
    ff.train(task, "fedavg", tmp_path / "m", rounds=1)
    path = tmp_path / "m" / "preparation.json"
    text = path.read_text()
    path.write_text(text[:40])
    with pytest.raises(UserError, match=r"preparation.json' is damaged"):
        ff.load_model(tmp_path / "m")
    path.unlink()
    with pytest.raises(UserError, match=r"preparation.json' is missing"):
        ff.load_model(tmp_path / "m")


def test_few_validation_rows_are_told_of_before_they_choose() -> None:
    def plan_of(rows: int, **options: object) -> tuple[str, ...]:
        x, y = np.arange(rows * 2.0).reshape(rows, 2), np.arange(rows) % 2
        task = ff.task_from_arrays("t", {site: (x + shift, y) for shift, site in enumerate(("a", "b", "c"))})
        return make_plan(task, algorithms=["fedavg"], **options).notes  # type: ignore[arg-type]

    (note,) = plan_of(50)
    assert note.startswith("source-validation chooses rounds by 10 rows in all, so partly by chance: compare")
    assert plan_of(50, rules=["last"]) == ()
    assert plan_of(300) == ()
    assert plan_of(100, validation=0.3) == ()
    assert plan_of(50, validation=0.3)[0].endswith("compare with the rule 'last'")
