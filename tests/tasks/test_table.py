"""Tables become tasks: what is inferred, what is left out with a note, what is refused and how."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from farfield.errors import UserError
from farfield.tasks import Task, load_table
from farfield.tasks.user_data.preparation import TablePreparation
from farfield.tasks.user_data.table import read_rows
from farfield.tasks.user_data.table_file import TableError, read_frame
from tests.tasks.tables import visits, write


def read(frame: pd.DataFrame, tmp_path: Path, **options: object) -> Task:
    chosen = {"label": "died", "domain": "hospital", **options}
    return load_table(write(frame, tmp_path / "visits.csv"), **chosen)  # type: ignore[arg-type]


def refusal(frame: pd.DataFrame, tmp_path: Path, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        read(frame, tmp_path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def columns(task: Task) -> dict[str, str]:
    assert isinstance(task.preparation, TablePreparation)
    return {column.name: column.kind for column in task.preparation.columns}


def test_types_classes_and_domains_are_inferred(tmp_path: Path) -> None:
    frame = visits()
    task = read(frame, tmp_path)
    assert (task.name, task.kind, task.classes, task.notes) == ("visits", "classification", ("no", "yes"), ())
    assert columns(task) == {"age": "number", "smokes": "boolean", "ward": "category", "pressure": "number"}
    assert task.domain_names == ("north", "south", "west")
    # age 1, smokes 1, ward 3 levels + missing, pressure 1 + missing
    assert task.model.input_shape == (8,)
    assert task.model.outputs == 2
    north = frame[frame["hospital"] == "north"]
    assert task.domain("north").y.tolist() == (north["died"] == "yes").astype(int).tolist()
    assert task.domain("north").x[:, 0].tolist() == north["age"].tolist()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v.csv", {}),
        ("v.csv.gz", {}),
        ("v.tsv", {"sep": "\t"}),
        ("v.csv", {"sep": ";"}),
        ("v.csv", {"sep": ";", "decimal": ","}),
        ("v.csv", {"sep": "|"}),
        ("v.csv", {"sep": "\t"}),
        ("v.csv", {"encoding": "utf-8-sig"}),
        ("v.csv", {"quoting": 1, "lineterminator": "\r\n"}),
        ("v.parquet", {}),
    ],
)
def test_every_dialect_gives_the_same_task(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    expected = read(visits(), tmp_path)
    path = write(visits(), tmp_path / name, **options)
    assert load_table(path, label="died", domain="hospital").data_hash == expected.data_hash


def test_a_question_mark_is_a_missing_value(tmp_path: Path) -> None:
    frame = visits().astype({"age": object})
    frame.loc[[3, 7], "age"] = "?"
    task = read(frame, tmp_path)
    assert columns(task)["age"] == "number"
    assert int(sum(torch.isnan(d.x[:, 0]).sum() for d in task.domains)) == 2


@pytest.mark.parametrize(
    ("label", "kind", "classes"),
    [
        ([True, False], "classification", ("False", "True")),
        ([1, 0], "classification", ("0", "1")),
        ([1.0, 0.0], "classification", ("0", "1")),
        ([10, 9, 2], "classification", ("2", "9", "10")),
        (["b", "a", "c"], "classification", ("a", "b", "c")),
        (list(np.linspace(0, 5, 60)), "regression", ()),
        (list(range(100, 160)), "regression", ()),
    ],
)
def test_the_label_says_whether_it_is_a_class(
    tmp_path: Path, label: list[object], kind: str, classes: tuple[str, ...]
) -> None:
    task = read(visits().assign(died=np.resize(np.array(label), 60)), tmp_path)
    assert (task.kind, task.classes) == (kind, classes)
    assert task.model.outputs == (len(classes) or 1)
    assert task.domains[0].y.dtype == (torch.int64 if classes else torch.float32)


def test_the_kind_can_be_said(tmp_path: Path) -> None:
    stars = visits().assign(died=np.arange(60) % 5)
    assert read(stars, tmp_path, kind="regression").kind == "regression"
    assert "were taken as 5 classes" in read(stars, tmp_path).notes[0]
    assert "holds text" in refusal(visits(), tmp_path, kind="regression")


def test_codes_can_be_said_to_be_categories(tmp_path: Path) -> None:
    frame = visits().assign(code=np.arange(60) % 4 + 1.0)
    frame.loc[5, "code"] = np.nan
    task = read(frame, tmp_path, categorical=["code"])
    assert isinstance(task.preparation, TablePreparation)
    code = task.preparation.columns[-1]
    assert (code.kind, code.levels, code.missing) == ("category", ("1", "2", "3", "4"), True)


def test_dropped_columns_are_gone(tmp_path: Path) -> None:
    assert "age" not in columns(read(visits(), tmp_path, drop=["age"]))


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"label": "dead"}, "there is no column 'dead' for the label"),
        ({"label": "Dieed"}, "did you mean 'died'?"),
        ({"domain": "hospitals"}, "no column 'hospitals' for the domain; did you mean 'hospital'?"),
        ({"domain": "zzz"}, "the columns are hospital, age, smokes, ward, pressure, died"),
        ({"drop": ["presure"]}, "no column 'presure' for --drop; did you mean 'pressure'?"),
        ({"label": "hospital"}, "'hospital' cannot be both the label and the domain"),
        ({"drop": ["died"]}, "'died' is the label and cannot be dropped"),
        ({"drop": ["age", "smokes", "ward", "pressure"]}, "no column is left to learn from"),
    ],
)
def test_columns_that_cannot_be_used_so_are_named(tmp_path: Path, options: dict[str, object], phrase: str) -> None:
    assert phrase in refusal(visits(), tmp_path, **options)


def test_missing_labels_are_named_by_row_and_dropped_on_demand(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[[0, 4, 9], "died"] = None
    assert "the label 'died' is missing in rows 1, 5 and 10" in (said := refusal(frame, tmp_path))
    assert "--drop-missing-labels" in said
    task = read(frame, tmp_path, drop_missing_labels=True)
    assert sum(map(len, task.domains)) == 57
    assert task.notes[0] == "left out what has no label: rows 1, 5 and 10"
    assert "has no values" in refusal(frame.assign(died=None), tmp_path, drop_missing_labels=True)


def test_missing_domains_are_named_by_row(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[11, "hospital"] = None
    assert "the domain 'hospital' is missing in row 12" in refusal(frame, tmp_path)


def test_a_constant_and_an_empty_column_are_left_out_with_a_note(tmp_path: Path) -> None:
    task = read(visits().assign(country="NL", nothing=None), tmp_path)
    assert "column 'country' was left out: every row has the value NL" in task.notes
    assert "column 'nothing' was left out: it has no values" in task.notes
    assert not {"country", "nothing"} & set(columns(task))


def test_a_text_column_with_a_value_for_every_row_is_left_out_with_a_hint(tmp_path: Path) -> None:
    frame = visits().assign(patient=[f"p-{i}" for i in range(60)])
    task = read(frame, tmp_path)
    assert "patient" not in columns(task)
    assert "60 different texts in 60 rows" in task.notes[0]
    assert "--drop 'patient'" in task.notes[0]
    assert read(frame, tmp_path, drop=["patient"]).notes == ()
    assert columns(read(frame, tmp_path, categorical=["patient"]))["patient"] == "category"


def test_numbers_spoilt_by_a_few_texts_are_told_which(tmp_path: Path) -> None:
    frame = visits().astype({"age": object})
    frame.loc[[2, 5], "age"] = "<18"
    note = read(frame, tmp_path).notes[0]
    assert "rows 3 and 6 have text such as '<18'" in note


def test_another_whole_number_in_every_row_is_worth_a_note(tmp_path: Path) -> None:
    task = read(visits().assign(id=np.arange(60) * 7), tmp_path)
    assert "leave it out with --drop 'id'" in task.notes[0]


def test_a_column_that_tells_the_label_is_worth_a_note(tmp_path: Path) -> None:
    frame = visits()
    task = read(frame.assign(outcome=frame["died"].map({"yes": "buried", "no": "home"})), tmp_path)
    assert task.notes[0].startswith("leak? column 'outcome' tells the label 'died'")


def test_an_infinite_value_is_named(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[8, "age"] = np.inf
    assert "column 'age' has an infinite value in row 9" in refusal(frame, tmp_path)


def test_a_domain_with_one_class_is_worth_a_note(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[frame["hospital"] == "west", "died"] = "no"
    (note,) = read(frame, tmp_path).notes
    assert "domain 'west' has one class only ('no' in all its 20 rows)" in note


def test_small_domains_are_refused_or_left_out_on_demand(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[[0, 1], "hospital"] = "tiny"
    said = refusal(frame, tmp_path)
    assert "of 4 domains of 'hospital', 1 with fewer than 5 rows: 'tiny' (2)" in said
    assert "--least-rows 5" in said
    task = read(frame, tmp_path, least_rows=5)
    assert "tiny" not in task.domain_names
    assert task.notes[0] == "left out 1 of 4 domains, with fewer than 5 rows: 'tiny' (2)"
    assert "no domain of 'hospital' has 100 rows; the largest has 20" in refusal(frame, tmp_path, least_rows=100)


def test_a_category_reads_the_same_whatever_else_is_in_its_column(tmp_path: Path) -> None:
    frame = visits().assign(code=np.where(np.arange(60) % 2, 1.0, 2.5))
    task = read(frame, tmp_path, categorical=["code"])
    assert isinstance(task.preparation, TablePreparation)
    code = next(c for c in task.preparation.columns if c.name == "code")
    assert code.levels == ("1", "2.5")
    fitted = task.preparation.fit([(d, torch.arange(len(d))) for d in task.domains])
    whole = write(frame[frame["code"] == 1.0].astype({"code": int}), tmp_path / "rows.csv")
    raw, notes = read_rows(whole, fitted)
    assert not [note for note in notes if "code" in note]
    assert raw[:, task.preparation.columns.index(code)].tolist() == [0.0] * 30


def test_rows_that_two_domains_share_are_counted_and_named(tmp_path: Path) -> None:
    frame = visits()
    copies = frame[frame["hospital"] == "north"].head(2).assign(hospital="south")
    task = read(pd.concat([frame, copies]), tmp_path)
    (note,) = task.notes
    assert note.startswith("4 of 62 rows are the same in two or more domains (rows 1, 4, 61 and 62)")


def test_rows_that_occur_twice_in_one_domain_are_counted_and_named(tmp_path: Path) -> None:
    frame = visits()
    within = frame[frame["hospital"] == "north"].head(2)
    (note,) = read(pd.concat([frame, within]), tmp_path).notes
    assert note.startswith(
        "4 of 62 rows occur twice or more in their own domain (4 in 'north'; rows 1, 4, 61 and 62), label included"
    )
    assert "among the validation rows" in note
    other_label = within.assign(died=within["died"].map({"yes": "no", "no": "yes"}))
    assert read(pd.concat([frame, other_label]), tmp_path).notes == ()


def test_a_label_with_a_class_for_every_row_is_refused(tmp_path: Path) -> None:
    frame = visits().assign(died=[f"case {i}" for i in range(60)])
    assert "the label 'died' has 60 classes in 60 rows" in refusal(frame, tmp_path)


def test_a_label_with_one_value_is_refused(tmp_path: Path) -> None:
    assert "the value 'no' in every row" in refusal(visits().assign(died="no"), tmp_path)
    assert "the value 2.5 in every row" in refusal(visits().assign(died=2.5), tmp_path)


def _file(tmp_path: Path, name: str, content: bytes) -> str:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_table(tmp_path / name, label="y", domain="d")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "phrase"),
    [
        ("a.csv", b"", "'a.csv' is empty"),
        ("a.csv", b"\n\n", "one column only or is no table"),
        ("a.csv", b"d,y,x\n", "has a header and no rows"),
        ("a.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not text"),
        ("a.csv", "d,y,ä\n1,2,ö\n".encode("latin-1"), "not UTF-8"),
        ("a.csv", b"hello\nworld\n", "no comma, semicolon, tab or bar"),
        ("a.csv", b"d,y,x\n1,2,3\n1,2,3,4\n1,2,3\n", "line 3 of 'a.csv' has 4 cells, and its header names 3 columns"),
        ("a.csv", b"d,y,x\n1,2,3,4\n1,2,3,4\n", "more cells in its rows than names"),
        ("a.csv.gz", b"d,y,x\n1,2,3\n", "cannot be unpacked"),
        ("a.csv.gz", gzip.compress(b"d,y,x\n" + b"1,2,3\n" * 9000)[:-20], "cannot be"),
        ("a.parquet", b"d,y,x\n1,2,3\n", "is not a Parquet file"),
        ("a.ods", b"PK", "save its sheet as CSV (UTF-8)"),
        ("a.xlsx", b"PK", "is not a workbook that can be read"),
        ("a.csv", b"d,y,d \n1,2,3\n", "two columns named 'd'"),
    ],
)
def test_a_file_that_is_no_table_is_named_with_the_reason(
    tmp_path: Path, name: str, content: bytes, phrase: str
) -> None:
    assert phrase in _file(tmp_path, name, content)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        load_table(tmp_path / "none.csv", label="y", domain="d")


def test_another_file_has_another_fingerprint(tmp_path: Path) -> None:
    frame = visits()
    before = read(frame, tmp_path).data_hash
    frame.loc[3, "age"] += 1
    assert read(frame, tmp_path).data_hash != before


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "dictionary"])
def test_a_parquet_file_with_text_that_is_not_utf8_is_refused_in_a_sentence(tmp_path: Path, packed: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    good = pa.array(["north", "south", "north"])
    broken = pa.Array.from_buffers(good.type, 3, [None, good.buffers()[1], pa.py_buffer(b"\xffor\xfehsouthnorth")])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), broken) if packed else broken
    pq.write_table(pa.table({"hospital": column, "died": [0, 1, 0]}), tmp_path / "visits.parquet")
    with pytest.raises(TableError, match=r"'visits.parquet' is not a Parquet file that can be read: .*UTF8"):
        read_frame(tmp_path / "visits.parquet")
