"""All problems of a table in one message, Excel and other encodings, and spellings of yes and no."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.tasks.user_data.table import load_table
from tests.tasks.tables import visits, write


def refusal(frame: pd.DataFrame, folder: Path, **options: object) -> str:
    chosen: dict[str, object] = {"label": "died", "domain": "hospital", **options}
    with pytest.raises(UserError) as caught:
        load_table(write(frame, folder / "visits.csv"), **chosen)  # type: ignore[arg-type]
    return str(caught.value)


def troubled() -> pd.DataFrame:
    """A table with every kind of problem, and with what only a user can judge."""
    frame = visits(90)
    frame["died"] = frame["died"].astype(object)
    frame.loc[2, "died"] = None
    frame.loc[5, "hospital"] = None
    frame.loc[len(frame)] = {**frame.iloc[0], "hospital": "tiny"}
    frame["pressure"] = frame["pressure"].astype(object)
    frame.loc[7, "pressure"] = "inf"
    frame["patient_id"] = np.arange(len(frame)) // 2
    frame["row"] = np.arange(len(frame)) + 1000
    frame["outcome"] = frame["died"].map({"yes": 1.5, "no": 0.5})
    return frame


def test_all_problems_stand_in_one_message_with_their_options(tmp_path: Path) -> None:
    said = refusal(troubled(), tmp_path).splitlines()
    assert said[0] == "'visits.csv': 4 problems:"
    assert said[1].startswith("  1. the label 'died' is missing in row 3 ")
    assert said[2].startswith("  2. the domain 'hospital' is missing in row 6 ")
    assert said[3].startswith("  3. of 4 domains of 'hospital', 1 with fewer than 5 rows: 'tiny' (1)")
    assert said[4].startswith("  4. column 'pressure' has an infinite value in row 8")
    assert said[5].startswith("say --drop-missing-labels --drop-missing-domains --least-rows 5 ")
    doubts = "\n".join(said[6:])
    for wanted in ("--group 'patient_id'", "--drop 'row'", "column 'outcome' tells the label 'died'"):
        assert wanted in doubts


def test_the_options_of_the_message_solve_it(tmp_path: Path) -> None:
    frame = troubled()
    frame.loc[7, "pressure"] = None
    task = load_table(
        write(frame, tmp_path / "visits.csv"),
        label="died",
        domain="hospital",
        drop=["row", "outcome"],
        group="patient_id",
        drop_missing_labels=True,
        drop_missing_domains=True,
        least_rows=5,
    )
    assert task.domain_names == ("north", "south", "west")
    assert sum(map(len, task.domains)) == 88
    assert any(note == "left out what has no domain: row 6" for note in task.notes)


def test_one_problem_stays_one_sentence_and_all_unknown_columns_are_named(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[2, "died"] = None
    assert "\n" not in refusal(frame, tmp_path)
    said = refusal(visits(), tmp_path, label="dead", domain="hospitl", drop=["aeg"])
    assert said.startswith("'visits.csv': 3 problems:")
    for name in ("'dead'", "did you mean 'hospital'?", "did you mean 'age'?"):
        assert name in said


def test_many_domains_of_one_class_are_one_note(tmp_path: Path) -> None:
    frame = pd.concat([visits(30).assign(hospital=f"h{n:02d}", died="no") for n in range(6)])
    frame = pd.concat([frame, visits(60)])
    task = load_table(write(frame, tmp_path / "t.csv"), label="died", domain="hospital")
    notes = [note for note in task.notes if "one class only" in note]
    assert len(notes) == 1
    assert notes[0].startswith("6 domains have one class only, 'h00' ('no' in all its 30 rows)")
    assert "and 3 more: held out, their accuracy" in notes[0]


def test_spellings_of_yes_and_no_are_two_classes_and_yes_is_the_second(tmp_path: Path) -> None:
    frame = visits()
    yes, no = ["Yes", " yes", "TRUE", "Y", "ja", "1", "oui"], ["NO", "no ", "false", "N", "nein", "0", "non"]
    truth = (frame["died"] == "yes").to_numpy()
    frame["died"] = [(yes if died else no)[n % 7] for n, died in enumerate(truth)]
    task = load_table(write(frame, tmp_path / "t.csv"), label="died", domain="hospital")
    assert len(task.classes) == 2
    where = np.concatenate([np.flatnonzero(frame["hospital"] == name) for name in task.domain_names])
    read = np.concatenate([domain.y.numpy() for domain in task.domains])
    np.testing.assert_array_equal(read, truth[where].astype(int))
    assert any(note.startswith("spellings of yes and no in the label 'died'") for note in task.notes)


@pytest.mark.parametrize(("no", "yes"), [("nein", "ja"), ("no", "yes"), ("N", "Y"), ("non", "oui")])
def test_yes_is_class_one_in_every_language(tmp_path: Path, no: str, yes: str) -> None:
    frame = visits()
    frame["died"] = frame["died"].map({"yes": yes, "no": no})
    task = load_table(write(frame, tmp_path / "t.csv"), label="died", domain="hospital")
    assert task.classes == (no, yes)
    assert not any("spellings" in note for note in task.notes)


def test_other_words_beside_yes_and_no_stay_classes(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[:5, "died"] = "maybe"
    frame.loc[6:9, "died"] = "YES"
    task = load_table(write(frame, tmp_path / "t.csv"), label="died", domain="hospital")
    assert task.classes == ("maybe", "no", "yes")


def test_a_file_in_another_encoding_names_the_one_that_works(tmp_path: Path) -> None:
    frame = visits()
    frame["hospital"] = frame["hospital"].map({"north": "Zürich", "south": "Genève", "west": "Łódź"})
    path = tmp_path / "t.csv"
    path.write_bytes(frame.replace({"Łódź": "Lodz"}).to_csv(index=False).encode("cp1252"))
    with pytest.raises(UserError, match="or read it with --encoding cp1252, in which 'Zürich' stands there"):
        load_table(path, label="died", domain="hospital")
    assert ff.read_table(path, label="died", domain="hospital", encoding="cp1252").domain_names[2] == "Zürich"
    path.write_bytes(frame.to_csv(index=False).encode("utf-16"))
    with pytest.raises(UserError, match=r"is UTF-16 text.* --encoding utf-16"):
        load_table(path, label="died", domain="hospital")
    assert "Łódź" in load_table(path, label="died", domain="hospital", encoding="utf-16").domain_names
    with pytest.raises(UserError, match="there is no encoding 'cp12525'; usual ones are utf-8, cp1252"):
        load_table(path, label="died", domain="hospital", encoding="cp12525")
    with pytest.raises(UserError, match="is not text in the encoding 'ascii'"):
        load_table(path, label="died", domain="hospital", encoding="ascii")


def test_a_workbook_is_read_as_the_same_rows_of_a_text_file(tmp_path: Path) -> None:
    frame = visits()
    with pd.ExcelWriter(tmp_path / "visits.xlsx") as book:
        frame.to_excel(book, sheet_name="rows", index=False)
        pd.DataFrame({"a": [1]}).to_excel(book, sheet_name="about", index=False)
    one = load_table(write(frame, tmp_path / "visits.csv"), label="died", domain="hospital")
    other = load_table(tmp_path / "visits.xlsx", label="died", domain="hospital")
    assert other.data_hash == one.data_hash
    assert any("the first sheet, 'rows', was read; name another with --sheet ('about')" in n for n in other.notes)
    named = load_table(tmp_path / "visits.xlsx", label="died", domain="hospital", sheet="rows")
    assert (named.data_hash, named.notes) == (one.data_hash, one.notes)
    with pytest.raises(UserError, match="has no sheet 'row'; it has rows, about"):
        load_table(tmp_path / "visits.xlsx", label="died", domain="hospital", sheet="row")
    with pytest.raises(UserError, match=r"--sheet is for .xlsx and .xlsm files"):
        load_table(tmp_path / "visits.csv", label="died", domain="hospital", sheet="rows")
    (tmp_path / "broken.xlsx").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"'broken.xlsx' is not a workbook that can be read"):
        load_table(tmp_path / "broken.xlsx", label="died", domain="hospital")


def test_without_openpyxl_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "visits.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UserError, match=r"pip install 'farfield\[excel\]', or save its sheet as CSV"):
        load_table(tmp_path / "visits.xlsx", label="died", domain="hospital")
