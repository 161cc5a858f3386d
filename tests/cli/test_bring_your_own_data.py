"""`--data`: a table from the file to the prediction, and what a user can get wrong on the way."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import farfield as ff
from tests.tasks.tables import visits, write

Command = Callable[..., Any]
COLUMNS = ["--label", "died", "--domain", "hospital"]
SMALL = ["-a", "fedavg", "--seeds", "1", "--rounds", "2", "--out", "b", "--quiet"]


def test_a_bench_on_a_table_has_a_result_for_each_domain_and_shows_the_notes(farfield: Command, tmp_path: Path) -> None:
    write(visits().assign(country="NL"), tmp_path / "visits.csv")
    ran = farfield("bench", "--data", "visits.csv", *COLUMNS, "--drop", "smokes", *SMALL, "--json", "rows.json")
    assert ran.code == 0, ran.err
    assert "note: column 'country' was left out: every row has the value NL" in ran.err
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["held_out"] for row in rows} == {"north", "south", "west"}
    assert {row["task"] for row in rows} == {"visits"}
    assert all(name in ran.out for name in ("north", "south", "west"))


def test_python_and_the_command_line_give_the_same_model(farfield: Command, tmp_path: Path) -> None:
    path = write(visits(), tmp_path / "visits.parquet")
    farfield("bench", "--data", "visits.parquet", *COLUMNS, *SMALL, "--json", "rows.json")
    task = ff.read_table(path, label="died", domain="hospital")
    result = ff.bench(task, algorithms=["fedavg"], seeds=1, rounds=2)
    shas = [row["model_sha256"] for row in json.loads((tmp_path / "rows.json").read_text())]
    assert shas == [row["model_sha256"] for row in result.rows]


@pytest.fixture
def model(farfield: Command, tmp_path: Path) -> Path:
    write(visits(), tmp_path / "visits.csv")
    ran = farfield("train", "--data", "visits.csv", *COLUMNS, "--rounds", "3", "--out", "model")
    assert ran.code == 0, ran.err
    assert "farfield bench --data visits.csv --label died --domain hospital --algorithms fedavg" in ran.out
    card = (tmp_path / "model" / "README.md").read_text()
    assert "`farfield bench --data` with the table that it was trained on, and `--algorithms fedavg`" in card
    return tmp_path / "model"


def test_the_bench_that_train_names_asks_the_same_question(farfield: Command, tmp_path: Path) -> None:
    write(visits(), tmp_path / "visits.csv")
    train = [
        "train",
        "--data",
        "visits.csv",
        *COLUMNS,
        "--drop",
        "ward",
        "--categorical",
        "smokes",
        "--least-rows",
        "5",
    ]
    options = ["--rounds", "2", "--clients", "6", "--cohort", "3", "--partition", "iid"]
    settings = ["--set", "lr=0.05", "--set", "model.hidden=[8]"]
    ran = farfield(*train, *options, *settings, "--out", "model", "--seed", "4", "--workers", "1")
    assert ran.code == 0, ran.err
    named = ran.out.split("took no part: ")[1].strip()
    assert shlex.split(named) == ["farfield", "bench", *train[1:], "--algorithms", "fedavg", *options, *settings]
    again = farfield(*shlex.split(named)[1:], "--seeds", "1", "--out", "b", "--quiet")
    assert again.code == 0, again.err


def predictions(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predict_reads_raw_rows_with_and_without_the_label(farfield: Command, model: Path, tmp_path: Path) -> None:
    frame = visits(30, seed=5)
    write(frame, tmp_path / "labelled.csv")
    write(frame[["ward", "pressure", "age", "smokes"]], tmp_path / "bare.parquet")
    labelled, bare = farfield("predict", "model", "labelled.csv"), farfield("predict", "model", "bare.parquet")
    assert (labelled.code, bare.code, labelled.err) == (0, 0, "")
    assert labelled.out == bare.out
    trained = ff.load_model(model)
    x, _ = trained.read(tmp_path / "labelled.csv")
    expected = trained.outputs(x)[:, 1]
    given = torch.tensor([float(row["p(yes)"]) for row in predictions(labelled.out)])
    torch.testing.assert_close(given, expected, atol=1e-6, rtol=0)
    assert [row["label"] for row in predictions(labelled.out)] == ["yes" if p > 0.5 else "no" for p in expected]


def test_unseen_categories_and_new_gaps_are_named(farfield: Command, model: Path, tmp_path: Path) -> None:
    frame = visits(9)
    frame.loc[[1, 3], "ward"] = "maternity"
    frame.loc[4, "age"] = np.nan
    write(frame, tmp_path / "new.csv")
    ran = farfield("predict", "model", "new.csv")
    assert ran.code == 0
    assert "column 'ward' has 'maternity' in rows 2 and 4, which training never showed" in ran.err
    assert "column 'age' has no value in row 5, and in training none was missing" in ran.err
    assert len(predictions(ran.out)) == 9


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"drop": "pressure"}, "there is no column 'pressure' for the model"),
        ({"rename": {"pressure": "Pressures"}}, "did you mean 'Pressures'?"),
        ({"set": ("age", "old")}, "column 'age' has 'old' in row 3, where a number belongs"),
        ({"set": ("smokes", "maybe")}, "column 'smokes' has 'maybe' in row 3, where true or false (1 or 0) belongs"),
    ],
)
def test_rows_that_cannot_be_predicted_are_named(
    farfield: Command, model: Path, tmp_path: Path, change: dict[str, Any], phrase: str
) -> None:
    frame = visits(9)
    if "drop" in change:
        frame = frame.drop(columns=change["drop"])
    frame = frame.rename(columns=change.get("rename", {}))
    if "set" in change:
        column, value = change["set"]
        frame[column] = frame[column].astype(object)
        frame.loc[2, column] = value
    write(frame, tmp_path / "rows.csv")
    ran = farfield("predict", "model", "rows.csv")
    assert ran.code == 2
    assert phrase in " ".join(ran.err.split())
    assert ran.out == ""


def test_a_model_of_arrays_predicts_raw_arrays(farfield: Command, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(1e6, 3.0, (40, 2))
    task = ff.task_from_arrays("mine", {"a": (x[:20], np.arange(20) % 2), "b": (x[20:], np.arange(20) % 2)})
    ff.train(task, "fedavg", tmp_path / "m", rounds=2)
    np.save(tmp_path / "x.npy", x)
    ran = farfield("predict", "m", "x.npy")
    assert ran.code == 0, ran.err
    trained = ff.load_model(tmp_path / "m")
    assert trained.preparation is not None
    expected = trained.outputs(trained.preparation.apply(torch.from_numpy(x)))[:, 1]
    given = torch.tensor([float(row["p(1)"]) for row in predictions(ran.out)])
    torch.testing.assert_close(given, expected, atol=1e-6, rtol=0)


MISTAKES = {
    "no data at all": (["bench"], "or --data"),
    "a task and data": (["bench", "rect-4", "--data", "v.csv", *COLUMNS], "give one of the two"),
    "no label": (["bench", "--data", "v.csv", "--domain", "hospital"], "needs --label"),
    "no domain": (["bench", "--data", "v.csv", "--label", "died"], "needs --domain"),
    "a label for a task": (["bench", "rect-4", "--label", "y"], "--label is for a table of yours"),
    "a file that is not there": (["bench", "--data", "w.csv", *COLUMNS], "there is no file 'w.csv'"),
    "a column misspelt": (["bench", "--data", "v.csv", "--label", "dyed", "--domain", "hospital"], "mean 'died'?"),
    "training on nothing": (["train", "--out", "m"], "or your own data with --data"),
    "one domain only": (["bench", "--data", "one.csv", *COLUMNS], "has one domain only (north)"),
    "a folder with a label": (["bench", "--data", ".", *COLUMNS], "'.' is a folder, whose names are its domains"),
    "missing labels": (["bench", "--data", "gaps.csv", *COLUMNS], "missing in row 3"),
}


@pytest.mark.parametrize(("arguments", "phrase"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_gets_one_sentence(farfield: Command, tmp_path: Path, arguments: list[str], phrase: str) -> None:
    frame = visits()
    write(frame, tmp_path / "v.csv")
    write(frame[frame["hospital"] == "north"], tmp_path / "one.csv")
    frame.loc[2, "died"] = None
    write(frame, tmp_path / "gaps.csv")
    ran = farfield(*arguments)
    assert ran.code == 2
    assert phrase in " ".join(ran.err.split())
    assert len(ran.err.strip().splitlines()) == 1
    assert {p.name for p in tmp_path.iterdir()} == {"v.csv", "one.csv", "gaps.csv"}


def test_rows_without_a_label_can_be_left_out(farfield: Command, tmp_path: Path) -> None:
    frame = visits()
    frame.loc[2, "died"] = None
    write(frame, tmp_path / "v.csv")
    ran = farfield("bench", "--data", "v.csv", *COLUMNS, "--drop-missing-labels", *SMALL)
    assert ran.code == 0
    assert "note: left out what has no label: row 3" in ran.err


def test_no_file_of_results_replaces_the_rows(farfield: Command, model: Path, tmp_path: Path) -> None:
    rows = write(visits(), tmp_path / "new.csv")
    before = rows.read_bytes()
    for command in (["bench", "--data", "new.csv", *COLUMNS, *SMALL], ["evaluate", "model", "new.csv"]):
        ran = farfield(*command, "--json", "new.csv")
        assert (ran.code, rows.read_bytes()) == (2, before)
        assert "--json: 'new.csv' is what is read" in ran.err


def test_predictions_are_written_whole_and_never_over_the_rows(
    farfield: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write(visits(), tmp_path / "new.csv")
    before = rows.read_bytes()
    ran = farfield("predict", "model", "new.csv", "--to", "new.csv")
    assert (ran.code, rows.read_bytes()) == (2, before)
    assert "--to: 'new.csv' is what is read" in ran.err
    assert "is what is read" in farfield("predict", "model", "new.csv", "--to", "model/model.safetensors").err
    assert "there is no folder 'no' to write" in farfield("predict", "model", "new.csv", "--to", "no/where.csv").err
    ran = farfield("predict", "model", "new.csv", "--to", "out.csv")
    assert (ran.code, ran.out, ran.err) == (0, "", "60 rows: out.csv\n")
    written = (tmp_path / "out.csv").read_bytes()
    assert written.decode() == farfield("predict", "model", "new.csv").out

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ran = farfield("predict", "model", "new.csv", "--to", "out.csv")
    assert (ran.code, (tmp_path / "out.csv").read_bytes()) == (1, written)
    assert "'out.csv': No space left on device; make room" in ran.err
    assert {p.name for p in tmp_path.iterdir()} == {"model", "visits.csv", "new.csv", "out.csv"}


def test_numbers_that_no_training_showed_are_refused_or_named(farfield: Command, model: Path, tmp_path: Path) -> None:
    frame = visits()
    frame["age"] = frame["age"].astype(float)
    frame.loc[2, "age"] = np.inf
    write(frame, tmp_path / "new.csv")
    ran = farfield("predict", "model", "new.csv")
    assert (ran.code, ran.out) == (2, "")
    assert "column 'age' has an infinite value in row 3" in ran.err
    frame.loc[2, "age"] = 1e30
    write(frame, tmp_path / "new.csv")
    ran = farfield("predict", "model", "new.csv")
    assert ran.code == 0
    assert "column 'age' has 1e+30 in row 3, which is beyond anything in training" in " ".join(ran.err.split())


def test_the_kind_of_a_label_can_be_said(farfield: Command, tmp_path: Path) -> None:
    write(visits().assign(score=np.arange(60) % 12), tmp_path / "v.csv")
    command = ["train", "--data", "v.csv", "--label", "score", "--domain", "hospital", "--rounds", "1", "--out"]
    assert "taken as 12 classes; if they are amounts, say --kind regression" in " ".join(
        farfield(*command, "c").err.split()
    )
    ran = farfield(*command, "r", "--kind", "regression")
    assert "--kind regression" in ran.out
    assert farfield("predict", "r", "v.csv").out.startswith("row,value")
    assert farfield("bench", "rect-4", "--kind", "regression").code == 2


def test_notes_are_part_of_what_python_prints(tmp_path: Path) -> None:
    task = ff.read_table(write(visits().assign(same=5), tmp_path / "v.csv"), label="died", domain="hospital")
    printed = str(ff.bench(task, ["fedavg"], seeds=1, rounds=1))
    assert "\nnote: column 'same' was left out: every row has the value 5  \n" in printed
