"""How many rounds each method gets, and what a run's config says of its model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.algorithms import State
from farfield.errors import UserError
from farfield.protocol.selection import SourceRow, choose
from farfield.records import RunFolder
from farfield.runs.bench import bench
from farfield.runs.plan import Job, Plan, make_plan
from farfield.runs.rounds import Rounds, open_run
from farfield.runs.settings import PlanError
from farfield.runs.single_run import schedule_of
from farfield.tasks.clients.partition import Partition, make_clients
from tests.toy import federation, initial
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


def test_runs_made_in_lockstep_have_the_results_of_runs_made_one_after_the_other(tmp_path: Path) -> None:
    plan = make_plan(toy_task(), algorithms=["fedavg", "scaffold"], all_train=True, seeds=1, rounds=3)

    def rounds_of(label: str, folder: Path, stack: ExitStack) -> tuple[Rounds, State]:
        algorithm, job = plan.algorithm(label), Job(label, None, 0)
        records = RunFolder(folder)
        open_run(records, plan.job_config(job))
        fed = stack.enter_context(federation(algorithm, toy_task().domains))
        rounds = Rounds(job, schedule_of(plan, job, algorithm, 2), records, algorithm, fed, {0: "a"}, engine="local")
        return rounds, algorithm.start(initial().state())

    with ExitStack() as stack:
        alone = {}
        for label in plan.algorithms:
            rounds, start = rounds_of(label, tmp_path / "alone" / label, stack)
            alone[label] = rounds.to_the_end(start)["model_sha256"]
        together = [rounds_of(label, tmp_path / "together" / label, stack) for label in plan.algorithms]
        for rounds, start in together:
            rounds.begin(start)
        steps = 0
        while not all(rounds.done for rounds, _ in together):
            for rounds, _ in together:
                rounds.step()
            steps += 1
        assert steps == 3
        assert {r.job.algorithm: r.finish()["model_sha256"] for r, _ in together} == alone
    assert len(set(alone.values())) == 2


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


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (["source-validation", "last"], 3),
        (["source-loss"], 1),
        (["oracle", "source-accuracy"], 2),
        (["last", "source-validation"], 4),
        (["leave-one-domain-out"], 3),
    ],
)
def test_a_training_keeps_the_round_that_the_first_honest_rule_chooses(
    tmp_path: Path, rules: list[str], kept: int
) -> None:
    plan = make_plan(toy_task(), algorithms="fedavg", all_train=True, seeds=1, rounds=4, rules=rules, metric="accuracy")
    algorithm, job = plan.algorithm("fedavg"), Job("fedavg", None, 0)
    figures = [(0.5, 0.1), (0.9, 0.3), (0.9, 0.3), (0.6, 0.9)]
    by_round = {i: {"a": {"accuracy": a, "loss": b, "n": 9.0}} for i, (a, b) in enumerate(figures, start=1)}
    with federation(algorithm, toy_task().domains) as fed:
        schedule = schedule_of(plan, job, algorithm, 2)
        rounds = Rounds(job, schedule, RunFolder(tmp_path), algorithm, fed, {0: "a"}, engine="local")
        better = [number for number, by_domain in by_round.items() if rounds._is_better(by_domain)]
    assert better[-1] == kept
    if not rules[0].startswith("leave"):
        honest = next(rule for rule in rules if rule != "oracle")
        assert choose(honest, "accuracy", [SourceRow(number, of) for number, of in by_round.items()]) == kept


def test_the_last_round_is_kept_even_where_a_domain_did_not_reply(tmp_path: Path) -> None:
    plan = make_plan(toy_task(), algorithms="fedavg", all_train=True, seeds=1, rounds=2, rules="last")
    algorithm, job = plan.algorithm("fedavg"), Job("fedavg", None, 0)
    with federation(algorithm, toy_task().domains) as fed:
        schedule = schedule_of(plan, job, algorithm, 2)
        rounds = Rounds(job, schedule, RunFolder(tmp_path), algorithm, fed, {0: "a", 1: "b"}, engine="local")
        assert rounds._is_better({"a": {"accuracy": 0.5, "loss": 1.0}})


def test_a_training_does_not_go_on_under_another_rule(tmp_path: Path) -> None:
    options: dict[str, Any] = {"algorithms": "fedavg", "all_train": True, "seeds": 1, "rounds": 1}
    job, plans = Job("fedavg", None, 0), [make_plan(toy_task(), **options, rules=rule) for rule in ("last", None)]
    open_run(RunFolder(tmp_path), plans[0].job_config(job))
    with pytest.raises(UserError, match="rule"):
        open_run(RunFolder(tmp_path), plans[1].job_config(job))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1)])
def test_a_round_without_the_metric_in_a_domain_is_kept_no_more_than_it_is_chosen(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    plan = make_plan(toy_task(), algorithms="fedavg", all_train=True, seeds=1, rounds=3, metric="auroc")
    algorithm, job = plan.algorithm("fedavg"), Job("fedavg", None, 0)
    figures: list[dict[str, dict[str, float]]] = [
        {"a": {"auroc": 0.9, "loss": 0.2}, "b": {"loss": 0.2}},  # diverged in b, and best in a
        {"a": {"auroc": 0.8, "loss": 0.3}, "b": {"auroc": 0.6, "loss": 0.3}},
        {"a": {"auroc": 0.7, "loss": 0.4}, "b": {"auroc": 0.6, "loss": 0.4}},
    ]
    rows = [SourceRow(number, figures[i]) for number, i in enumerate(order, start=1)]
    with federation(algorithm, toy_task().domains) as fed:
        schedule = schedule_of(plan, job, algorithm, 2)
        rounds = Rounds(job, schedule, RunFolder(tmp_path), algorithm, fed, {0: "a", 1: "b"}, engine="local")
        better = [row.round for row in rows if rounds._is_better(row.domains)]
    assert better[-1] == choose("source-validation", "auroc", rows) == order.index(1) + 1
