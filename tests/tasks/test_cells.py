"""What a person would take a column's cells for, and how its reader says that it did not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from farfield.errors import UserError
from farfield.tasks import Task, load_table
from farfield.tasks.user_data.cells import found_type, nearly_numbers
from farfield.tasks.user_data.preparation import FittedTable, TablePreparation
from farfield.tasks.user_data.table import read_rows
from tests.tasks.tables import visits, write


def read(frame: pd.DataFrame, tmp_path: Path, name: str = "visits.csv", **options: object) -> Task:
    return load_table(write(frame, tmp_path / name, **options), label="died", domain="hospital")


def text_file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("value", [5, 5.5, True, "NL", 10**20, 2**63])
def test_a_constant_column_is_left_out_with_its_value(tmp_path: Path, value: object) -> None:
    (note,) = read(visits().assign(same=value), tmp_path).notes
    assert note == f"column 'same' was left out: every row has the value {value}"


@pytest.mark.parametrize(
    "cells",
    [
        ["2021-03-04", "2021-12-31", "1999-01-01"],
        ["4.3.2021", "31.12.2021", "1.1.1999"],
        ["3/4/21", "12/31/21", "1/1/99"],
        ["2021-03-04 12:30", "2021-03-04T12:30:01.5Z", "2021-03-04 1:30 PM"],
        [pd.Timestamp("2021-03-04").date()],
    ],
)
@pytest.mark.parametrize("repeated", [1, 40])
def test_dates_are_dates_however_many_differ(cells: list[object], repeated: int) -> None:
    assert found_type(pd.Series(cells * repeated, dtype=object)) == "date"


@pytest.mark.parametrize(
    "cells",
    [
        ["2021-03-04", "soon"],
        ["1-2", "3-4"],
        ["10.0.0.1"],
        ["2021-03/04"],
        ["1/2"],
        ["84.71.30"],
        ["40-47-84"],
        ["1.0.3", "1.2.10"],
        ["2021-13-01"],
        ["0.0.21"],
    ],
)
def test_other_text_is_no_date(cells: list[str]) -> None:
    assert found_type(pd.Series(cells, dtype=object)) == "text"


@pytest.mark.parametrize("days", [10, 60])
def test_dates_in_a_csv_are_left_out_as_dates(tmp_path: Path, days: int) -> None:
    dates = [f"2021-{1 + day % days // 28:02d}-{1 + day % 28:02d}" for day in range(60)]
    (note,) = read(visits().assign(admitted=dates), tmp_path).notes
    assert note.startswith("column 'admitted' was left out: it holds dates; ")


def test_a_typo_in_few_numbers_is_named_where_the_column_becomes_categories(tmp_path: Path) -> None:
    grades = [str(number % 5) for number in range(60)]
    grades[10] = "1o"
    (note,) = read(visits().assign(grade=grades), tmp_path).notes
    assert "column 'grade' was taken as 6 categories" in note
    assert "row 11 has text such as '1o'" in note
    assert "--categorical 'grade'" in note


@pytest.mark.parametrize(
    ("cells", "phrase"),
    [
        (["1,234.50", "2,000.00"], "with a comma or with thousands apart, such as '1,234.50' in row 1"),
        (["61,26", "5", "7,5"], "such as '61,26' in row 1"),
        (["3,14", "2,71", "1.234,56"], "such as '1.234,56' in row 3"),
        ([f"{age} y" for age in range(30)], "with a unit or a sign, such as '0 y' in row 1"),
        ([f"<{age}" for age in range(30)], "with a unit or a sign"),
        (["1", "2", "x"], "row 3 has text such as 'x'"),
    ],
)
def test_numbers_written_in_another_way_are_named(cells: list[str], phrase: str) -> None:
    said = nearly_numbers(pd.Series(cells, index=range(1, len(cells) + 1), dtype=object))
    assert said is not None
    assert phrase in said


@pytest.mark.parametrize(
    "cells",
    [
        ["a", "b"],
        ["T1", "T2"],
        ["1st", "2nd", "3rd"],
        ["1", "2"],
        ["20-30", "30-40"],
        ["10.0.0.1", "10.0.0.2"],
        ["2021.03.04", "soon"],
        ["1.2.3", "1.10.0"],
    ],
)
def test_categories_and_plain_numbers_are_not_doubted(cells: list[str]) -> None:
    assert nearly_numbers(pd.Series(cells * 20, dtype=object)) is None


def with_commas(separator: str, second: str) -> str:
    rows = [
        f"{'abc'[i % 3]}{separator}{i},{i % 7}{separator}{second.format(i)}{separator}{'yn'[i % 2]}" for i in range(60)
    ]
    return "\n".join([separator.join(["hosp", "age", "bp", "y"]), *rows]) + "\n"


@pytest.mark.parametrize(
    ("separator", "second"), [(";", "1{},5"), ("\t", "1{},5"), ("|", "1{},5"), (";", "1{}.5"), ("\t", "1{}")]
)
def test_decimal_commas_are_read_wherever_a_comma_parts_no_cells(tmp_path: Path, separator: str, second: str) -> None:
    path = text_file(tmp_path / "t.csv", with_commas(separator, second))
    task = load_table(path, label="y", domain="hosp")
    first = task.domain("a").x[1].tolist()
    assert first == [3.3, float(second.format(3).replace(",", "."))]
    assert "a comma was read as the decimal sign: '0,0' of column 'age' is 0" in task.notes


def cells_in(path: Path, separator: str, cells: list[str]) -> Task:
    rows = [f"{'abc'[i % 3]}{separator}{cells[i % len(cells)]}{separator}{'yn'[i % 2]}" for i in range(60)]
    header = separator.join(["hosp", "dose", "y"])
    return load_table(text_file(path, "\n".join([header, *rows]) + "\n"), label="y", domain="hosp")


@pytest.mark.parametrize("separator", ["\t", "|"])
def test_a_comma_that_may_part_thousands_is_no_decimal_sign_by_itself(tmp_path: Path, separator: str) -> None:
    task = cells_in(tmp_path / "t.csv", separator, ["950", "1,200", "12,345"])
    assert isinstance(task.preparation, TablePreparation)
    assert task.preparation.columns[0].levels == ("950", "1,200", "12,345")
    assert "thousands apart, such as '1,200' in row 2" in task.notes[0]
    one_more = cells_in(tmp_path / "u.csv", separator, ["950", "1,200", "12,345", "0,5"])
    assert sorted({float(v) for d in one_more.domains for v in d.x[:, 0]}) == [0.5, 1.2, 12.345, 950.0]


def test_between_semicolons_a_comma_is_the_decimal_sign_and_a_note_says_so(tmp_path: Path) -> None:
    task = cells_in(tmp_path / "t.csv", ";", ["950", "1,200", "12,345"])
    assert sorted({float(v) for d in task.domains for v in d.x[:, 0]}) == [1.2, 12.345, 950.0]
    assert task.notes[0] == "a comma was read as the decimal sign: '1,200' of column 'dose' is 1.2"


@pytest.mark.parametrize("age", ["{},5", "{}.5"])
def test_true_and_false_stay_what_they_are_beside_decimal_commas(tmp_path: Path, age: str) -> None:
    rows = [f"{1 + i % 3};{age.format(i)};{'True' if i % 2 else 'False' if i % 5 else ''}" for i in range(60)]
    path = text_file(tmp_path / "t.csv", "\n".join(["site;age;died", *rows]) + "\n")
    task = load_table(path, label="died", domain="site", drop_missing_labels=True)
    assert task.classes == ("False", "True")


@pytest.mark.parametrize(
    ("header", "twice"),
    [("hosp,y,age,y", "y"), ("hosp,y,age,age", "age"), ("hosp,hosp,age,y", "hosp"), ('hosp,y,age, "age"', "age")],
)
def test_a_column_name_that_stands_twice_is_refused(tmp_path: Path, header: str, twice: str) -> None:
    path = text_file(tmp_path / "t.csv", header + "\n" + "a,1,2,3\n" * 9)
    with pytest.raises(UserError, match=rf"'t.csv' has two columns named '{twice}'; rename one of them"):
        load_table(path, label="y", domain="hosp")


def test_domains_keep_the_name_that_is_written(tmp_path: Path) -> None:
    named = visits().assign(hospital=np.resize(["001", "1", "01.0"], 60))
    assert set(read(named, tmp_path).domain_names) == {"001", "1", "01.0"}


def test_a_named_index_of_a_parquet_file_is_a_column(tmp_path: Path) -> None:
    plain = read(visits(), tmp_path)
    indexed = read(visits().set_index("hospital"), tmp_path, "indexed.parquet")
    assert indexed.domain_names == plain.domain_names


@pytest.mark.parametrize("by", [["hospital"], ["hospital", "ward"]])
def test_an_index_that_is_a_column_as_well_is_read_once(tmp_path: Path, by: list[str]) -> None:
    plain = read(visits(), tmp_path)
    indexed = read(visits().set_index(by, drop=False), tmp_path, "indexed.parquet")
    assert indexed.preparation == plain.preparation


def test_a_level_of_the_index_without_a_name_is_no_column(tmp_path: Path) -> None:
    frame = visits()
    frame.index = pd.MultiIndex.from_arrays([frame.pop("hospital"), range(60)], names=["hospital", None])
    assert read(frame, tmp_path, "indexed.parquet").preparation == read(visits(), tmp_path).preparation


@pytest.mark.parametrize(
    ("cells", "found"),
    [(["a"], "text"), (["2021-03-04", "soon"], "text"), ([True, False], "boolean"), ([1, 2], "text")],
)
def test_pandas_categories_are_told_by_their_cells(tmp_path: Path, cells: list[object], found: str) -> None:
    column = pd.Series(np.resize(np.array(cells, dtype=object), 60), dtype="category")
    assert found_type(column) == found
    read(visits().assign(more=column), tmp_path, "visits.parquet")


def test_large_numbers_that_differ_are_not_called_constant(tmp_path: Path) -> None:
    notes = read(visits().assign(code=2**53 + np.arange(60) % 2), tmp_path).notes
    assert not any("every row has the value" in note for note in notes)


def test_a_typo_in_the_label_is_named(tmp_path: Path) -> None:
    grades = [str(number % 2) for number in range(60)]
    grades[10] = "O"
    task = read(visits().assign(died=grades), tmp_path)
    assert task.classes == ("0", "1", "O")
    assert (
        "the label 'died' was taken as 3 classes: it holds text, most of them numbers, but row 11 has" in task.notes[0]
    )
    amounts = [str(1000 + number) for number in range(60)]
    amounts[10] = "1o10"
    path = write(visits().assign(died=amounts), tmp_path / "amounts.csv")
    with pytest.raises(UserError, match=r"60 classes in 60 rows; .*mend the label, .* row 11 has text such as '1o10'"):
        load_table(path, label="died", domain="hospital")
    with pytest.raises(
        UserError, match=r"holds text, .* row 11 has text such as '1o10' .* a regression cannot predict"
    ):
        load_table(path, label="died", domain="hospital", kind="regression")


def test_a_long_line_is_told_against_the_header(tmp_path: Path) -> None:
    path = text_file(tmp_path / "t.csv", "a,b,c\n1,2,3,4\n1,2,3,4,5\n")
    with pytest.raises(UserError, match=r"line 3 of 't.csv' has 5 cells, and its header names 3 columns"):
        load_table(path, label="a", domain="b")


def test_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(visits().to_csv(index=False), encoding="utf-16")
    with pytest.raises(UserError, match=r"is UTF-16 text; save it as CSV in UTF-8"):
        load_table(path, label="died", domain="hospital")


def test_words_that_stand_for_nothing_are_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing is an empty cell, or a word that stands for one, such as NA"):
        read(visits().assign(hospital=np.resize(["NA", "DE"], 60)), tmp_path)


def coded(rows: int = 60) -> pd.DataFrame:
    """Wards 01, 02 and A1, which only together are no numbers."""
    return visits(rows).assign(ward=np.resize(["01", "02", "A1", "1.50"], rows))


def test_a_category_is_read_as_it_is_written_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    path = write(coded(), tmp_path / "all.csv")
    task = load_table(path, label="died", domain="hospital")
    assert task.preparation is not None
    fitted = task.preparation.fit([(domain, torch.arange(len(domain))) for domain in task.domains])
    assert isinstance(fitted, FittedTable)
    whole, _ = read_rows(path, fitted)
    some = write(coded().iloc[:2], tmp_path / "some.csv")
    few, notes = read_rows(some, fitted)
    assert torch.equal(few.nan_to_num(-9), whole[:2].nan_to_num(-9))
    assert not any("ward" in note for note in notes)


def test_codes_that_are_said_to_be_categories_keep_their_zeros(tmp_path: Path) -> None:
    path = write(visits().assign(zip=np.resize(["01019", "1019", "90210"], 60)), tmp_path / "v.csv")
    task = load_table(path, label="died", domain="hospital", categorical=["zip"])
    assert isinstance(task.preparation, TablePreparation)
    (column,) = [column for column in task.preparation.columns if column.name == "zip"]
    assert set(column.levels) == {"01019", "1019", "90210"}
    as_numbers = load_table(path, label="died", domain="hospital").notes
    assert as_numbers[0] == (
        "column 'zip' has cells such as '01019', which were read as numbers; if they are codes, say --categorical 'zip'"
    )


def test_a_whole_number_beside_a_gap_is_the_same_category_as_without(tmp_path: Path) -> None:
    frame = visits().assign(code=np.resize([1, 2, 3], 60))
    plain = load_table(write(frame, tmp_path / "v.csv"), label="died", domain="hospital", categorical=["code"])
    frame["code"] = frame["code"].astype(float).where(frame.index > 5)  # written as 1.0, 2.0, 3.0
    gaps = load_table(write(frame, tmp_path / "w.csv"), label="died", domain="hospital", categorical=["code"])
    for task in (plain, gaps):
        assert isinstance(task.preparation, TablePreparation)
        assert [column.levels for column in task.preparation.columns if column.name == "code"] == [("1", "2", "3")]


def test_dots_between_thousands_are_no_decimal_points_where_a_comma_is(tmp_path: Path) -> None:
    rows = [f"{'abc'[i % 3]};{50 + i},5;{['2.703', '987', '12.345'][i % 3]};{'yn'[i % 2]}" for i in range(60)]
    path = text_file(tmp_path / "t.csv", "\n".join(["hosp;age;cost;y", *rows]) + "\n")
    notes = load_table(path, label="y", domain="hosp").notes
    assert any("column 'cost' was taken as 3 categories" in n and "with thousands apart" in n for n in notes)
    plain = text_file(tmp_path / "p.csv", path.read_text().replace("2.703", "2.7").replace("12.345", "12.25"))
    task = load_table(plain, label="y", domain="hosp")
    assert sorted({float(v) for d in task.domains for v in d.x[:, 1]}) == [2.7, 12.25, 987.0]


def test_why_no_column_is_left_is_told(tmp_path: Path) -> None:
    ages = [str(number) for number in range(60)]
    ages[3] = "k.A."
    path = write(visits()[["hospital", "died"]].assign(age=ages), tmp_path / "v.csv")
    with pytest.raises(
        UserError, match=r"'v\.csv': no column is left .*; column 'age' was left out: .* row 4 has text"
    ):
        load_table(path, label="died", domain="hospital")


def test_a_data_frame_is_a_table_too(tmp_path: Path) -> None:
    frame = visits()
    task = load_table(frame.sample(frac=1, random_state=0).sort_index(), label="died", domain="hospital")
    assert task.name == "table"
    assert task.preparation == load_table(write(frame, tmp_path / "v.csv"), label="died", domain="hospital").preparation
    with pytest.raises(UserError, match="the data frame: there is no column 'dyed'"):
        load_table(frame, label="dyed", domain="hospital")
    with pytest.raises(UserError, match="a file or a pandas DataFrame, not int"):
        load_table(3, label="died", domain="hospital")  # type: ignore[arg-type]


def test_a_data_frame_with_two_columns_of_one_name_is_refused() -> None:
    frame = pd.concat([visits(), visits()[["age"]]], axis=1)
    with pytest.raises(UserError, match="the data frame has two columns named 'age'; rename one of them"):
        load_table(frame, label="died", domain="hospital")


def test_how_commas_were_read_is_told_even_where_the_column_quoted_is_dropped(tmp_path: Path) -> None:
    path = text_file(tmp_path / "t.csv", with_commas(";", "1{},5"))
    (note,) = load_table(path, label="y", domain="hosp", drop=["age"]).notes
    assert note.startswith("a comma was read as the decimal sign")


def test_an_infinite_label_is_no_class(tmp_path: Path) -> None:
    path = write(visits().assign(died=np.resize([1.0, 2.0, np.inf], 60)), tmp_path / "v.csv")
    with pytest.raises(UserError, match=r"column 'died' has an infinite value in rows 3, 6, 9"):
        load_table(path, label="died", domain="hospital")
