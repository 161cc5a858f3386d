"""The function behind `farfield bench`: what it calls when, and what it does with a folder that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.runs.plan import Job, Plan, make_plan
from farfield.runs.rounds import Progress
from tests.toy import task


class Recorder:
    """Writes down what a sweep tells."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def ready(self, plan: Plan) -> None:
        self.told.append(("ready", plan.algorithms))

    def begin(self, total: int, done: int) -> None:
        self.told.append(("begin", total, done))

    def progress(self, progress: Progress) -> None:
        pass

    def finished(self, job: Job, error: str | None) -> None:
        self.told.append((job.algorithm, job.held_out, error))


def test_ready_comes_after_the_checks_and_before_the_first_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"held_out": ["a"], "seeds": 1, "rounds": 1, "out": tmp_path / "b"}
    heard = Recorder()
    ff.bench(task(3), ["fedavg"], ready=heard.ready, observer=heard, **options)
    assert heard.told == [("ready", ("fedavg",)), ("begin", 1, 0), ("fedavg", "a", None)]
    refused = Recorder()
    with pytest.raises(UserError, match="holds this bench already"):
        ff.bench(task(3), ["fedavg"], ready=refused.ready, observer=refused, **options)
    assert refused.told == []


def test_a_single_name_is_a_list_of_one() -> None:
    plan = make_plan(task(3), algorithms="fedavg", held_out="b", rules="last")
    assert (plan.held_out, plan.rules) == (("b",), ("last",))
    assert make_plan(task(3), algorithms="fedavg", held_out="all").held_out == ("a", "b", "c")


@pytest.mark.parametrize("given", [[15], 15, ("a", 15)])
def test_a_domain_that_is_no_text_gets_a_sentence(given: Any) -> None:
    with pytest.raises(UserError, match="held_out takes names, which are texts, and 15 is none; give '15'"):
        make_plan(task(3), algorithms="fedavg", held_out=given)


def test_fresh_replaces_a_bench_and_resume_finds_nothing_left_to_do(tmp_path: Path) -> None:
    options: dict[str, Any] = {"held_out": ["a"], "seeds": 1, "rounds": 1, "out": tmp_path / "b"}
    first = ff.bench(task(3), ["fedavg"], **options)
    other = ff.bench(task(3), ["fedprox"], fresh=True, **options)
    assert [row["algorithm"] for row in (*first.rows, *other.rows)] == ["fedavg", "fedprox"]
    heard = Recorder()
    again = ff.bench(task(3), ["fedprox"], resume=True, observer=heard, **options)
    assert heard.told == [("begin", 1, 1)]
    assert again.rows == other.rows
    with pytest.raises(UserError, match="give one of the two"):
        ff.bench(task(3), ["fedprox"], resume=True, fresh=True, **options)
