"""References stand in every bench beside what was asked for, unless someone says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

import farfield as ff
from farfield.runs.plan import make_plan
from farfield.runs.references import REFERENCES
from farfield.runs.settings import PlanError
from tests.toy import task


@pytest.mark.with_references
def test_a_bench_has_the_references_beside_what_was_asked_for(tmp_path: Path) -> None:
    result = ff.bench(task(), "fedprox", held_out="c", seeds=1, rounds=1, parallel=1, out=tmp_path / "b")
    assert [row["algorithm"] for row in result.rows] == ["fedprox", *REFERENCES]
    assert [line.algorithm for line in result.results().lines if line.reference] == ["prior", "erm", "local-only"]
    assert result.results().baseline == "fedavg"


@pytest.mark.parametrize(
    ("asked", "references", "labels"),
    [
        (["fedprox"], True, ("fedprox", *REFERENCES)),
        (["fedprox"], False, ("fedprox",)),
        (["fedprox"], ["erm", "prior"], ("fedprox", "erm", "prior")),
        (["fedavg", "prior", "fedprox"], True, ("fedavg", "prior", "fedprox", "erm", "local-only")),
        (["slow=fedavg:lr=0.01"], True, ("slow", "prior", "erm", "local-only")),
    ],
)
def test_references_are_added_once(asked: list[str], references: bool | list[str], labels: tuple[str, ...]) -> None:
    assert make_plan(task(), algorithms=asked, references=references).algorithms == labels


def test_a_method_that_is_no_reference_is_told_what_references_are() -> None:
    with pytest.raises(PlanError, match="'fedprox' is not a reference; they are prior, erm, local-only, fedavg"):
        make_plan(task(), algorithms=["fediir"], references=["fedprox"])


def test_settings_of_the_methods_give_no_note_on_references_that_nobody_asked_for() -> None:
    plan = make_plan(task(), algorithms=["fedprox"], references=True, settings={"weighting": "uniform", "lr": 0.2})
    assert not [note for note in plan.notes if "has no effect" in note]
    assert plan.settings["erm"]["lr"] == 0.2
