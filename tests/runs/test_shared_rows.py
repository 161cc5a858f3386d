"""Rows in shared files: what a node takes from them is what the run put there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.federation.population import Population
from farfield.runs.plan import Job, make_plan
from farfield.runs.run_data import run_data
from farfield.runs.simulation.shared_rows import SharedRows, take_population
from farfield.tasks import load_table
from farfield.tasks.task import Task
from tests.toy import task as toy_task


def table(folder: Path, label: str) -> Task:
    sex = ["" if n % 11 == 0 else "mf"[n % 2] for n in range(90)]
    rows = [f"{'abc'[n % 3]},{n * 0.37 % 7:.3f},{sex[n]},{n % 2},{n * 1.3 % 5:.2f}" for n in range(90)]
    (folder / "t.csv").write_text("\n".join(["site,age,sex,died,stay", *rows]))
    return load_table(folder / "t.csv", label=label, domain="site")


def pictures() -> Task:
    made = toy_task(3)
    domains = tuple(replace(d, x=(d.x * 20).clamp(0, 255).to(torch.uint8)) for d in made.domains)
    return replace(made, domains=domains)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "toy"),
        ({"partition": "split", "clients": 7}, "toy"),
        ({"partition": "dirichlet:0.3", "clients": 6}, "toy"),
        ({"partition": "iid", "clients": 5}, "toy"),
        ({"partition": "sub-environments", "clients": 1}, "toy"),
        ({"validation": 0.01}, "toy"),
        ({}, "bytes"),
        ({}, "died"),
        ({}, "stay"),
    ],
)
def test_clients_from_shared_files_are_the_runs_clients(options: dict[str, Any], kind: str, tmp_path: Path) -> None:
    makers = {"toy": lambda: toy_task(3), "bytes": pictures}
    problem = makers[kind]() if kind in makers else table(tmp_path, kind)
    job = Job("fedavg", problem.domain_names[-1], 0)
    plan = make_plan(problem, algorithms=["fedavg"], **options)
    data = run_data(plan, problem, job)
    (tmp_path / "rows").mkdir()
    described = SharedRows(tmp_path / "rows").put_run("run", data, plan.augment)
    taken = take_population(json.loads(json.dumps(described)))
    made = Population(data.sources, data.clients)
    assert len(taken) == len(made)
    assert taken.with_validation_rows() == made.with_validation_rows()
    for number in range(len(made)):
        a, b = (p.client(number, seed=0, round=1, phase="train", state={}) for p in (made, taken))
        assert (a.name, a.domain, a.samples) == (b.name, b.domain, b.samples)
        assert made.domain_of(number) == taken.domain_of(number)
        for rows in ("training", "validation"):
            every = torch.arange(len(getattr(a, rows)))
            if len(every):
                for mine, theirs in zip(getattr(a, rows).take(every), getattr(b, rows).take(every), strict=True):
                    assert torch.equal(mine, theirs)


def test_rows_that_stay_the_same_are_written_once_for_all_runs(tmp_path: Path) -> None:
    problem = toy_task(3)
    plan = make_plan(problem, algorithms=["fedavg"])
    shared = SharedRows(tmp_path)
    for seed in (0, 1, 2):
        for held_out in problem.domain_names:
            name = f"{held_out}-{seed}"
            shared.put_run(name, run_data(plan, problem, Job("fedavg", held_out, seed)), "none")
            shared.drop_run(name)
    assert len(list(tmp_path.iterdir())) == 2 * len(problem.domains)
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert written == sum(d.x.nbytes + d.y.nbytes for d in problem.domains)


def test_the_held_out_domain_is_not_among_the_rows_that_nodes_are_told_of(tmp_path: Path) -> None:
    problem = toy_task(3)
    plan = make_plan(problem, algorithms=["fedavg"])
    described = SharedRows(tmp_path).put_run("r", run_data(plan, problem, Job("fedavg", "b", 0)), "none")
    assert [domain["name"] for domain in described["domains"]] == ["a", "c"]


def test_prepared_rows_are_gone_with_their_run(tmp_path: Path) -> None:
    problem = table(tmp_path, "died")
    (tmp_path / "rows").mkdir()
    shared = SharedRows(tmp_path / "rows")
    shared.put_run("r", run_data(make_plan(problem, algorithms=["fedavg"]), problem, Job("fedavg", "a", 0)), "none")
    assert list((tmp_path / "rows").rglob("*.raw"))
    shared.drop_run("r")
    assert not list((tmp_path / "rows").rglob("*.raw"))
