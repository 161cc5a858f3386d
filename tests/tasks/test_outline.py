"""An outline: a plan can be made where the rows are elsewhere, and is the plan that the rows would give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError
from farfield.tasks import load_table
from farfield.tasks.outline import TaskOutline
from tests.toy import SPEC, task

OPTIONS: dict[str, Any] = {"algorithms": ["fedavg", "fedprox:mu=0.5"], "all_train": True, "equal_steps": False}


def test_an_outline_names_domains_and_sizes_and_holds_no_rows() -> None:
    outline = task(3).outline()
    assert outline == TaskOutline(
        name="toy",
        kind="classification",
        rows={"a": 40, "b": 48, "c": 56},
        classes=("x", "y", "z"),
        model=SPEC,
        shape=(4,),
        data=task(3).data_hash,
        defaults={"rounds": 4, "lr": 0.1, "batch_size": 8},
    )
    assert outline.domain_names == ("a", "b", "c")


def test_a_tables_outline_has_the_shape_that_the_model_takes(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    rows = [f"{'ab'[n % 2]},{n * 7 % 30 + 40},{'uvw'[n % 3]},{n // 2 % 2}" for n in range(60)]
    path.write_text("\n".join(["site,age,ward,died", *rows]))
    table = load_table(path, label="died", domain="site")
    outline = table.outline()
    assert table.domains[0].x.shape[1:] == (2,)  # age and ward, as they are read
    assert outline.shape == (4,)  # age, and one column per ward
    assert outline.prepared
    assert outline.rows == {"a": 30, "b": 30}


@pytest.mark.parametrize("more", [{}, {"cohort": 2, "rounds": 7, "settings": {"fedprox.lr": 0.5}}])
def test_the_plan_of_an_outline_is_the_plan_of_the_task(more: dict[str, Any]) -> None:
    whole = task(3)
    outline, plan = make_plan(whole.outline(), **OPTIONS, **more), make_plan(whole, **OPTIONS, **more)
    # Only rows tell how often each class occurs, and so why a metric leads.
    assert outline.model_copy(update={"metric_reason": plan.metric_reason}) == plan


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {"cohort": 4}, "a cohort of 4 cannot be drawn from 3 clients"),
        ({}, {"settings": {"model.input_shape": [9]}}, r"has examples of shape \(4,\), the model takes \(9,\)"),
        ({"classes": ("w", "x", "y", "z")}, {}, "has 4 classes, and the model has 3"),
        ({"rows": {"a": 40, "b": 1}}, {}, "domain 'b': 1 row cannot be split"),
        ({}, {"equal_steps": True}, "equal local steps are counted in rows, which are elsewhere"),
        ({"kind": "regression", "classes": ()}, {"algorithms": ["fedcir"]}, "fedcir"),
    ],
)
def test_what_names_and_sizes_show_is_refused_without_rows(
    changes: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        make_plan(replace(task(3).outline(), **changes), **{**OPTIONS, **options})
