"""A run that holds out several domains at once, each measured and counted by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.protocol.leave_one_out import source_domains
from farfield.report.collect import collect
from farfield.report.tables import cost_table, result_table
from farfield.runs.plan import Job, make_plan
from farfield.runs.plan_checks import check_against_rows
from farfield.runs.run_data import run_data
from farfield.tasks.clients.partition import Partition, make_clients
from tests.toy import task

OPTIONS: dict[str, Any] = {"seeds": 2, "rounds": 3}


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> ff.BenchResult:
    out = tmp_path_factory.mktemp("folds") / "b"
    return ff.bench(task(5), ["fedavg", "fedprox"], held_out=["a+b", "c"], out=out, **OPTIONS)


def test_every_domain_of_a_fold_has_its_own_row(benched: ff.BenchResult) -> None:
    rows = [row for row in benched.rows if row["algorithm"] == "fedavg"]
    assert [(r["held_out"], r["fold"], r["seed"], r["fold_domains"]) for r in rows] == [
        (domain, fold, seed, size)
        for domain, fold, size in (("a", "a+b", 2), ("b", "a+b", 2), ("c", "c", 1))
        for seed in (0, 1)
    ]
    by = {(r["held_out"], r["seed"]): r for r in rows}
    assert by["a", 0]["model_sha256"] == by["b", 0]["model_sha256"] != by["c", 0]["model_sha256"]
    assert by["a", 0]["selection"]["last"]["loss"] != by["b", 0]["selection"]["last"]["loss"]


def test_no_domain_of_a_fold_trains() -> None:
    plan = make_plan(task(5), algorithms=["fedavg"], held_out=["a+b", "c"])
    data = run_data(plan, task(5), Job("fedavg", "a+b", 0))
    assert [d.name for d in data.sources] == ["c", "d", "e"]
    assert [d.name for d in data.targets] == ["a", "b"]
    inner = run_data(plan, task(5), Job("fedavg", "c", 0, "a+b"))
    assert [d.name for d in inner.sources] == ["d", "e"]
    assert [d.name for d in inner.targets] == ["a", "b"]


def test_a_fold_scores_what_a_bench_with_fewer_domains_scores(benched: ff.BenchResult, tmp_path: Path) -> None:
    """Holding out a and b and measuring on a is leave-a-out on a task without b."""
    whole = task(5)
    without = ff.Task(
        "toy", whole.kind, tuple(d for d in whole.domains if d.name != "b"), whole.classes, whole.model, whole.defaults
    )
    other = ff.bench(without, ["fedavg"], held_out=["a"], out=tmp_path / "b", **OPTIONS)
    here = next(r for r in benched.rows if (r["algorithm"], r["held_out"], r["seed"]) == ("fedavg", "a", 0))
    assert here["model_sha256"] == other.rows[0]["model_sha256"]
    assert here["selection"] == other.rows[0]["selection"]


def test_domains_are_the_unit_and_costs_count_once(benched: ff.BenchResult) -> None:
    table = benched.results()
    assert table.domains == ("a", "b", "c")
    assert all(line.runs == 6 for line in table.lines)
    assert len(benched.sweep.runs) == 2 * 2 * 2
    cost = cost_table(benched.sweep).to_dicts()[0]
    steps = {r["fold"]: r["local_steps"] for r in benched.rows if r["algorithm"] == "fedavg"}
    assert (cost["runs"], cost["local_steps"]) == (4, (steps["a+b"] + steps["c"]) / 2)
    assert benched.sweep.completeness.sentence == ""
    assert "a+b" in benched.report().read_text()


def test_a_fold_without_a_result_fails_on_each_of_its_domains(benched: ff.BenchResult, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(benched.folder, tmp_path / "b")
    next((tmp_path / "b/runs/fedprox").glob("a*/seed-1/result.json")).unlink()
    sweep = collect(tmp_path / "b", "test")
    assert [(f["held_out"], f["fold"]) for f in sweep.failures] == [("a", "a+b"), ("b", "a+b")]
    line = result_table(sweep, "last").lines[1]
    assert (line.runs, line.failed) == (4, 2)
    there = sweep.completeness
    assert (there.runs, there.done, there.failed, there.domains_done) == (8, 7, 1, 1)
    assert there.sentence == (
        "7 of 8 runs are done, 1 failed or stopped halfway; 1 of 3 held-out domains are complete: read this as "
        "provisional."
    )


def test_nested_selection_works_with_folds(tmp_path: Path) -> None:
    result = ff.bench(
        task(5), ["fedavg"], folds=3, seeds=1, rounds=2, rules=["leave-one-domain-out"], out=tmp_path / "b"
    )
    assert {r["held_out"] for r in result.rows} == set("abcde")
    assert len(list((tmp_path / "b").rglob("result.json"))) == 3 + 3 * 2
    with pytest.raises(UserError, match="two folds at once and needs at least three"):
        make_plan(task(5), algorithms=["fedavg"], folds=2, rules=["leave-one-domain-out"])


@pytest.mark.parametrize("held_out", [None, ["a+b", "c"], ["d"]])
def test_clients_are_counted_once_for_all_folds_as_for_each(held_out: list[str] | None) -> None:
    plan = make_plan(task(5), algorithms=["fedavg"], held_out=held_out, validation=0.3)
    counted = check_against_rows(plan, task(5))
    made = [
        make_clients(
            source_domains(task(5), plan.domains_of(fold)),
            partition=Partition.parse("domain"),
            validation=0.3,
            seed=0,
            kind="classification",
        )
        for fold in plan.fold_names
    ]
    assert counted.clients == {len(clients) for clients in made}
    assert counted.validation_rows == min(int(clients.validation_sizes.sum()) for clients in made)
