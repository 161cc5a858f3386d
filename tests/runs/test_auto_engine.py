"""The engine that is chosen where none is asked for: by what the runs are, and never with another result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from farfield.runs.engine_choice import LEAST_CLIENTS, EngineChoice, choose_engine
from farfield.runs.plan import Job, make_plan
from farfield.tasks.open_task import open_task
from farfield.tasks.task import Task
from tests.toy import task

CONVNET = {"model.featurizer": "convnet", "model.hidden": [4, 8], "model.norm": "none"}


def images(domains: int = 3) -> Task:
    made = {}
    for name in "abc"[:domains]:
        made[name] = (torch.rand(12, 1, 8, 8).numpy(), (torch.arange(12) % 3).numpy())
    return ff.task_from_arrays("images", made)


def chosen(on_task: Task, plan: dict[str, Any] | None = None, jobs: int | None = None, **options: Any) -> EngineChoice:
    made = make_plan(on_task, **{"algorithms": ["fedavg", "fediir"], "seeds": 2, "rounds": 2, **(plan or {})})
    return choose_engine("auto", made, on_task, list(made.jobs(on_task))[:jobs], **options)


def test_small_models_of_many_runs_are_stacked() -> None:
    assert chosen(task(4)).engine == "batched"
    assert chosen(open_task("rotated-digits"), {"algorithms": ["fedavg", "fedilc-inter-geo"]}).engine == "batched"


@pytest.mark.parametrize(
    ("plan", "options", "why"),
    [
        ({}, {"workers": 2}, "workers share"),
        ({}, {"on": "ray"}, "cluster"),
        ({}, {"devices": (torch.device("cuda", 0),)}, "not measured on a GPU"),
        ({"deadline": 5.0}, {}, "deadline"),
        ({"settings": {"model.dropout": 0.5}}, {}, "dropout"),
        ({"settings": {"model.hidden": [600, 600]}}, {}, "parameters"),
        ({"algorithms": ["fedilc-intra-geo"], "settings": {"privacy": "none"}}, {"jobs": 1, "parallel": 1}, "fewer"),
    ],
    ids=str,
)
def test_what_gains_nothing_is_made_on_local(plan: dict[str, Any], options: dict[str, Any], why: str) -> None:
    found = chosen(task(4), plan, **options)
    assert found.engine == "local"
    assert why in found.why


def test_convolutions_are_made_on_local_and_cores_share_the_clients_of_a_single_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    many = chosen(images(), {"settings": CONVNET})
    assert (many.engine, many.workers) == ("local", None)
    one = chosen(images(), {"settings": CONVNET}, jobs=1)
    assert (one.engine, one.workers) == ("local", 2)
    small = chosen(task(3), jobs=1, parallel=1)
    assert (small.engine, small.workers) == ("local", None), f"fewer than {LEAST_CLIENTS} clients"


def test_an_engine_that_is_asked_for_is_taken() -> None:
    plan = make_plan(task(4), algorithms=["fedavg"], seeds=1, rounds=1)
    jobs = [Job("fedavg", "a", 0)]
    assert choose_engine("local", plan, task(4), jobs).engine == "local"
    assert choose_engine("flower", plan, task(4), jobs, workers=2) == EngineChoice("flower", 2, "it was asked for")


def test_the_result_is_that_of_local_and_names_its_engine(tmp_path: Path) -> None:
    def made(**options: Any) -> list[tuple[str, str]]:
        bench = ff.bench(task(4), ["fedavg", "fediir"], seeds=1, rounds=2, references=False, parallel=1, **options)
        return [(row["engine"], row["model_sha256"]) for row in bench.rows]

    auto, local = made(out=tmp_path / "auto"), made(out=tmp_path / "local", engine="local")
    assert {engine for engine, _ in auto} == {"batched"}
    assert {engine for engine, _ in local} == {"local"}
    assert [sha for _, sha in auto] == [sha for _, sha in local]
