"""Rows of the held-out domain change neither the columns nor the classes of a model, to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from farfield.runs.plan import Job, make_plan
from farfield.runs.run_data import run_data
from farfield.runs.settings import PlanError
from farfield.runs.single_run import run_job
from farfield.tasks import load_table
from farfield.tasks.task import Task
from farfield.tasks.user_data.arrays import task_from_arrays


def table(separator: str = ",") -> pd.DataFrame:
    """Three hospitals with a number, a category, a boolean, numbers with gaps, and a label of two classes."""
    rng = np.random.default_rng(5)
    rows = 20
    parts = []
    for shift, hospital in enumerate(("north", "south", "west")):
        age = np.round(rng.normal(50 + 5 * shift, 10, rows), 2)
        parts.append(
            pd.DataFrame(
                {
                    "hospital": hospital,
                    "age": age,
                    "ward": rng.choice(["icu", "er", "day"], rows),
                    "smokes": rng.choice([True, False], rows),
                    "dose": np.where(rng.random(rows) < 0.2, np.nan, np.round(rng.normal(size=rows), 3)),
                    "died": np.where(age + rng.normal(0, 8, rows) > 55 + 5 * shift, "yes", "no"),
                }
            )
        )
    frame = pd.concat(parts, ignore_index=True).astype(object)
    if separator == ";":
        for name in ("age", "dose"):
            frame[name] = frame[name].map(lambda cell: str(cell).replace(".", ","), na_action="ignore")
    return frame


def read(frame: pd.DataFrame, folder: Path, separator: str = ",") -> Task:
    path = folder / "visits.csv"
    frame.to_csv(path, index=False, sep=separator)
    return load_table(path, label="died", domain="hospital")


def result(task: Task, folder: Path, held_out: str | None, inner: str | None = None, **options: Any) -> dict[str, Any]:
    rules = ["last", "leave-one-domain-out"] if inner else ["last"]
    plan = make_plan(
        task, algorithms="fedavg", seeds=1, rounds=2, rules=rules, all_train=held_out is None, equal_steps=False
    )
    return run_job(plan, task, Job("fedavg", held_out, 0, inner), folder, **options)


def first_west(frame: pd.DataFrame) -> int:
    return int((frame["hospital"] == "west").argmax())


def blank(frame: pd.DataFrame) -> None:
    frame.loc[first_west(frame), ["age", "ward"]] = None


def extra_class(frame: pd.DataFrame) -> None:
    frame.loc[first_west(frame), "died"] = "lost"


def extra_level(frame: pd.DataFrame) -> None:
    frame.loc[first_west(frame), "ward"] = "attic"


def outlier(frame: pd.DataFrame) -> None:
    frame.loc[first_west(frame), "age"] = 1e30


def word(frame: pd.DataFrame) -> None:
    frame.loc[first_west(frame), ["age", "smokes"]] = ["old", "maybe"]


def all_gaps(frame: pd.DataFrame) -> None:
    frame.loc[frame["hospital"] == "west", ["smokes", "age"]] = None


def many_names(frame: pd.DataFrame) -> None:
    west = frame["hospital"] == "west"
    frame.loc[west, "ward"] = [f"room {number}" for number in range(int(west.sum()))]


CHANGES = [blank, extra_class, extra_level, outlier, word, all_gaps, many_names]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model that is trained without 'west', before anything is changed there."""
    folder = tmp_path_factory.mktemp("unchanged")
    return str(result(read(table(), folder), folder / "run", "west")["model_sha256"])


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_in_the_held_out_domain_leaves_the_model_as_it_was(
    change: Callable[[pd.DataFrame], None], unchanged: str, tmp_path: Path
) -> None:
    changed = table()
    change(changed)
    assert result(read(changed, tmp_path), tmp_path / "run", "west")["model_sha256"] == unchanged


@pytest.mark.parametrize("change", [word, extra_class, blank], ids=lambda change: change.__name__)
def test_the_same_holds_for_inner_runs_and_where_the_comma_is_the_decimal_sign(
    change: Callable[[pd.DataFrame], None], tmp_path: Path
) -> None:
    changed = table(";")
    change(changed)
    shas = [
        [
            result(task, tmp_path / name / inner, held_out, inner)["model_sha256"]
            for held_out, inner in (("west", "south"), ("south", "west"))
        ]
        for name, task in (("a", read(table(";"), tmp_path, ";")), ("b", read(changed, tmp_path, ";")))
    ]
    assert shas[0] == shas[1]


def test_the_change_matters_where_its_domain_trains(tmp_path: Path) -> None:
    changed = table()
    word(changed)
    one, other = read(table(), tmp_path), read(changed, tmp_path)
    for held_out in ("south", None):
        a, b = (result(task, tmp_path / f"{n}{held_out}", held_out) for n, task in enumerate((one, other)))
        assert a["model_sha256"] != b["model_sha256"]


def test_the_columns_of_a_run_are_those_of_a_file_with_its_sources_alone(tmp_path: Path) -> None:
    changed = table(";")
    for change in (word, extra_level, blank):
        change(changed)
    task = read(changed, tmp_path, ";")
    alone = read(changed[changed["hospital"] != "west"], tmp_path, ";")
    assert task.preparation is not None
    of_run = task.preparation.of_sources([task.domain("north"), task.domain("south")])
    assert of_run.columns == alone.preparation.columns  # type: ignore[attr-defined, union-attr]
    for name in ("north", "south"):
        got, wanted = of_run.examples(task.domain(name)).numpy(), alone.domain(name).x.numpy()
        np.testing.assert_array_equal(got, wanted)
    west = of_run.examples(task.domain("west"))[0]
    names = [column.name for column in of_run.columns]  # type: ignore[attr-defined]
    assert [math.isnan(west[names.index(name)]) for name in ("age", "smokes")] == [True, True]


def test_rows_of_an_unseen_class_are_wrong_and_counted(tmp_path: Path) -> None:
    changed = table()
    changed.loc[changed.index[changed["hospital"] == "west"][:5], "died"] = "lost"
    task = read(changed, tmp_path)
    plan = make_plan(task, algorithms="fedavg", seeds=1, rounds=1, equal_steps=False)
    assert any("only 'west' has 'lost' (5 rows): held out, these rows are of an unseen class" in n for n in plan.notes)
    data = run_data(plan, task, Job("fedavg", "west", 0))
    assert (data.schema.classes, dict(data.unseen)) == (("no", "yes"), {"west": {"lost": 5}})
    assert plan.spec_for(plan.algorithm("fedavg"), data.schema).outputs == 2
    assert data.targets[0].y[:5].tolist() == [2] * 5
    made = result(task, tmp_path / "run", "west")
    assert made["unseen"] == {"west": {"lost": 5}}
    assert run_data(plan, task, Job("fedavg", "north", 0)).schema.classes == ("lost", "no", "yes")


def test_sources_of_one_class_are_not_trained_on(tmp_path: Path) -> None:
    frame = table()
    frame.loc[frame["hospital"] != "west", "died"] = "no"
    task = read(frame, tmp_path)
    plan = make_plan(task, algorithms="fedavg", seeds=1)
    assert plan.held_out == ("north", "south")
    assert any("'west' is not held out: the domains that would train ('north', 'south')" in n for n in plan.notes)
    with pytest.raises(PlanError, match="have the class 'no' only, so nothing can be learned"):
        make_plan(task, algorithms="fedavg", seeds=1, held_out=["west"])


def test_gaps_and_classes_of_arrays_come_from_the_sources(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {name: (rng.normal(size=(12, 3)), np.arange(12) % 2) for name in "abc"}
    changed = {**parts, "c": (np.where(np.arange(36).reshape(12, 3) == 4, np.nan, parts["c"][0]), np.arange(12) % 3)}
    one, other = (task_from_arrays("made", given) for given in (parts, changed))
    shas = [result(task, tmp_path / str(n), "c")["model_sha256"] for n, task in enumerate((one, other))]
    assert shas[0] == shas[1]
    given = task_from_arrays("made", changed, classes=["0", "1", "2"])
    assert run_data(make_plan(given, algorithms="fedavg"), given, Job("fedavg", "c", 0)).schema.classes == tuple("012")
