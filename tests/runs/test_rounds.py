"""How many rounds each method gets, and what a run's config says of its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.errors import UserError
from farfield.runs.bench import bench
from farfield.runs.plan import Job, Plan, make_plan
from farfield.runs.settings import PlanError
from farfield.tasks.clients.partition import Partition, make_clients
from tests.toy import task as toy_task


@pytest.mark.parametrize(("communications", "epochs"), [(None, 8), (2, 8), ([1, 3, 6], 6)])
def test_single_step_methods_make_as_many_steps_as_the_others_however_often_these_synchronise(
    communications: int | list[int] | None, epochs: int
) -> None:
    options: dict[str, Any] = {"rounds": 4} if not isinstance(communications, list) else {}
    if options:
        options["settings"] = {"local_epochs": 2}
    plan = make_plan(toy_task(), algorithms=["fedavg", "fedsgd"], communications=communications, **options)
    assert plan.rounds_of["fedsgd"] == epochs * -(-_training_rows(plan) // 8)


def _training_rows(plan: Plan) -> int:
    made = make_clients(
        toy_task().domains[1:],
        partition=Partition.parse(plan.partition),
        clients=None,
        validation=plan.validation,
        seed=0,
        kind="classification",
    )
    return int(made.train_sizes.double().mean().ceil())


def test_a_runs_config_says_which_model_it_was_and_a_contradiction_is_refused() -> None:
    plan = make_plan(toy_task(), algorithms=["fedavg", "fedcir"])
    models = {name: plan.job_config(Job(name, "a", 0))["model"]["representation"] for name in plan.algorithms}
    assert models == {"fedavg": "plain", "fedcir": "gaussian"}
    with pytest.raises(PlanError, match="fedcir needs a gaussian representation"):
        make_plan(toy_task(), algorithms=["fedcir"], settings={"model.representation": "plain"})


def test_a_bench_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    task = toy_task()
    options: dict[str, Any] = {"algorithms": ["fedavg"], "seeds": 1, "rounds": 1, "held_out": ["a"], "parallel": 1}
    bench(task, **options, out=tmp_path / "out")
    assert bench(task, **options, out=tmp_path / "out", resume=True).rows
    first = task.domains[0]
    moved = replace(first, x=first.x + torch.tensor([0.0, 0.0, 0.0, 1e-3]))
    with pytest.raises(UserError, match="data is"):
        bench(replace(task, domains=(moved, *task.domains[1:])), **options, out=tmp_path / "out", resume=True)
