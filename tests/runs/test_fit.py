"""A comparison leaves out what does not fit; a method alone is refused; a task's default is dropped for a method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import farfield as ff
from farfield.report.collect import collect
from farfield.report.page import write_report
from farfield.runs.plan import DEFAULT_ALGORITHMS, make_plan
from farfield.runs.settings import PlanError
from farfield.tasks.task import Domain, Task
from tests.toy import SPEC, domains, task

NO_CLASSES = "imagines the features of each class, and a regression task has no classes"


def regression() -> Task:
    of = [Domain(d.name, d.x, d.y.float()) for d in domains(3)]
    model = SPEC.model_copy(update={"outputs": 1})
    return Task(name="toy", kind="regression", domains=tuple(of), classes=(), model=model, defaults={"rounds": 2})


def test_the_default_methods_run_on_a_regression_table_without_those_that_need_classes() -> None:
    plan = make_plan(regression())
    assert set(plan.left_out) == {"fedcir", "fedilc-inter-geo"}
    assert NO_CLASSES in plan.left_out["fedcir"]
    assert plan.algorithms == tuple(m for m in DEFAULT_ALGORITHMS if m not in plan.left_out)
    assert set(plan.settings) == set(plan.rounds_of) == set(plan.algorithms)


def test_a_method_asked_for_alone_is_refused_with_the_way_out() -> None:
    with pytest.raises(PlanError, match=f"^fedcir {NO_CLASSES}; 'farfield list algorithms' shows the methods that do$"):
        make_plan(regression(), algorithms=["fedcir"])


@pytest.mark.parametrize("asked", [["fedcir", "fedilc-fishr"], ["fedavg", "fedcir"], ["erm", "fedcir"]])
def test_a_comparison_of_which_only_references_are_left_is_refused_with_the_reasons(asked: list[str]) -> None:
    with pytest.raises(PlanError, match=f"no method is left to compare.*fedcir {NO_CLASSES}"):
        make_plan(regression(), algorithms=asked)


def test_a_task_default_that_a_method_cannot_use_is_dropped_for_that_method_with_a_note() -> None:
    suggested = replace(task(), defaults={**task().defaults, "momentum": 0.9})
    plan = make_plan(suggested, algorithms=["fedavg", "scaffold"])
    assert plan.settings["fedavg"]["momentum"] == 0.9
    assert plan.settings["scaffold"]["momentum"] == 0.0
    assert plan.left_out == {}
    assert [note for note in plan.notes if "scaffold goes without the task's own momentum=0.9" in note]
    assert make_plan(suggested, algorithms=["scaffold"]).settings["scaffold"]["momentum"] == 0.0


def test_what_a_user_sets_leaves_out_the_method_that_cannot_take_it() -> None:
    plan = make_plan(task(), algorithms=["fedavg", "fedprox", "scaffold"], settings={"momentum": 0.9})
    assert plan.algorithms == ("fedavg", "fedprox")
    assert plan.left_out["scaffold"].startswith("scaffold keeps the mean gradient of plain local SGD")
    with pytest.raises(PlanError, match="set momentum=0"):
        make_plan(task(), algorithms=["scaffold"], settings={"momentum": 0.9})


def test_a_value_that_is_wrong_is_refused_and_leaves_nothing_out() -> None:
    with pytest.raises(PlanError, match="mu"):
        make_plan(task(), algorithms=["fedavg", "fedprox"], settings={"fedprox.mu": -1})


def test_a_method_that_compares_clients_is_left_out_where_a_run_has_one() -> None:
    plan = make_plan(task(2), algorithms=["fedavg", "fediir", "fedilc-fishr"])
    assert list(plan.left_out) == ["fedilc-fishr"]
    assert "needs at least 2 in a cohort" in plan.left_out["fedilc-fishr"]
    nested = make_plan(task(3), algorithms=["fediir", "fedilc-fishr"], rules=["leave-one-domain-out"])
    assert list(nested.left_out) == ["fedilc-fishr"]


def test_table_page_and_records_have_a_line_for_what_was_left_out(tmp_path: Path) -> None:
    result = ff.bench(
        regression(), ["fedavg", "fediir", "fedcir"], held_out="c", seeds=1, rounds=1, parallel=1, out=tmp_path / "b"
    )
    assert {row["algorithm"] for row in result.rows} >= {"fedavg", "fediir"}
    assert collect(tmp_path / "b", "test").plan["left_out"] == {
        "fedcir": f"fedcir {NO_CLASSES}; 'farfield list algorithms' shows the methods that do"
    }
    table = result.results()
    assert [row[0].text for row in table.grid().rows][-1] == "fedcir"
    assert f"fedcir is left out: fedcir {NO_CLASSES}" in " ".join(table.notes())
    page = write_report(result.sweep, tmp_path / "report.html").read_text()
    assert NO_CLASSES in page
