"""Notes on what only the user can judge: spellings, ids, columns that know the label, copies with new numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import farfield as ff
from farfield.tasks.user_data.data_warnings import auroc, folded, lacking_notes, ranks, small_notes
from tests.tasks.image_files import make_folder
from tests.tasks.tables import visits, write


def notes(frame: pd.DataFrame, tmp_path: Path, label: str = "died", **options: object) -> list[str]:
    path = write(frame, tmp_path / "v.csv")
    return list(ff.read_table(path, label=label, domain="hospital", **options).notes)  # type: ignore[arg-type]


def test_a_clean_table_raises_no_doubt(tmp_path: Path) -> None:
    assert notes(visits(90), tmp_path) == []


def test_two_spellings_of_a_class_or_a_domain_are_named_with_their_rows(tmp_path: Path) -> None:
    frame = visits(60).replace({"died": {"yes": "dead", "no": "alive"}})
    dead = frame.index[frame["died"] == "dead"]
    frame.loc[dead[:4], "died"] = "Dead"
    frame["hospital"] = frame["hospital"].replace({"north": "Zurich", "south": "zürich "})
    label, domain = (note for note in notes(frame, tmp_path) if "differ only in case" in note)
    assert label.startswith(f"the label 'died' has 'Dead' (4 rows) and 'dead' ({len(dead) - 4} rows): they differ only")
    assert domain.startswith("the domain 'hospital' has 'Zurich' (20 rows) and 'zürich' (20 rows): they differ only")


def test_numbers_of_a_regression_have_no_spellings(tmp_path: Path) -> None:
    frame = visits(60).drop(columns="died")
    assert notes(frame, tmp_path, label="age") == []


def test_folded_names_lose_case_spaces_and_accents() -> None:
    assert folded("  Saint  Étienne ") == folded("saint etienne")
    assert folded("STRASSE") == folded("Straße")
    assert folded("north 1") != folded("north 2")


def test_folders_of_two_spellings_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    make_folder(tmp_path / "sites", {"north": {"cat": 6, "dog": 6}, "North": {"cat": 6, "Dog": 5}})
    if len(list((tmp_path / "sites").iterdir())) < 2:
        pytest.skip("this file system does not tell cases apart")
    said = " | ".join(ff.read_folder(tmp_path / "sites", size=16).notes)
    assert "among its classes the folder has 'Dog' (5 images) and 'dog' (6 images)" in said
    assert "among its domains the folder has 'North' (11 images) and 'north' (12 images)" in said


def test_copied_rows_are_found_although_each_got_a_number_of_its_own(tmp_path: Path) -> None:
    frame = visits(90)
    frame.loc[[4, 7], frame.columns != "hospital"] = frame.loc[[0, 3], frame.columns != "hospital"].to_numpy()
    frame["visit"] = np.arange(90) * 3
    said = notes(frame, tmp_path)
    assert any("if it is an id, leave it out with --drop 'visit'" in note for note in said)
    (copies,) = [note for note in said if "the same in two or more domains" in note]
    assert copies.startswith("4 of 90 rows are the same in two or more domains (rows 1, 4, 5 and 8), label included")
    assert "and 'visit' aside" in copies
    assert not any("aside" in note for note in notes(frame, tmp_path, drop=["visit"]))


def test_a_number_that_starts_anew_in_each_domain_is_an_id_too(tmp_path: Path) -> None:
    frame = visits(120).assign(number=np.arange(120) // 3 + 1)
    assert (
        "column 'number' has another whole number in every row of a domain; if it is an id, leave it out with "
        "--drop 'number'"
    ) in notes(frame, tmp_path)


def test_whole_numbers_that_repeat_are_no_id(tmp_path: Path) -> None:
    frame = visits(120).assign(beds=np.random.default_rng(0).integers(0, 90, 120))
    assert notes(frame, tmp_path) == []


@pytest.mark.parametrize(("sign", "side"), [(1, "above"), (-1, "below")])
def test_a_number_that_tells_the_class_is_named(tmp_path: Path, sign: int, side: str) -> None:
    frame = visits(90)
    frame["days"] = sign * ((frame["died"] == "no") * 10 + np.random.default_rng(0).random(90).round(3))
    (note,) = notes(frame, tmp_path)
    assert note.startswith("leak? column 'days' almost tells the class")
    assert f"rows of 'no' lie {side} those of 'yes' (AUROC 1.000)" in note
    assert "leave it out with --drop 'days'" in note


def test_a_strong_feature_is_no_leak(tmp_path: Path) -> None:
    frame = visits(90)
    frame["score"] = (frame["died"] == "no") * 1.0 + np.random.default_rng(9).normal(0, 0.6, 90).round(3)
    area = roc_auc_score(frame["died"] == "no", frame["score"])
    assert 0.8 < area < 0.98
    assert notes(frame, tmp_path) == []


def test_gaps_that_tell_the_class_are_named(tmp_path: Path) -> None:
    frame = visits(90)
    hours = np.random.default_rng(0).random(90).round(3)
    frame["hours to death"] = np.where(frame["died"] == "yes", hours, np.nan)
    (note,) = notes(frame, tmp_path)
    assert note.startswith("leak? column 'hours to death' has values almost only in rows of 'yes' and next to none in")


def test_one_of_several_classes_can_be_told(tmp_path: Path) -> None:
    frame = visits(90)
    frame["died"] = np.array(["early", "late", "never"])[np.random.default_rng(1).integers(0, 3, 90)]
    frame["day"] = np.where(frame["died"] == "never", 999.5, np.random.default_rng(0).random(90).round(2))
    (note,) = notes(frame, tmp_path)
    assert "rows of 'never' lie above those of the other classes (AUROC 1.000)" in note


def test_a_number_in_other_units_leaks_into_a_regression(tmp_path: Path) -> None:
    frame = visits(90).drop(columns="died")
    frame["euros"] = frame["age"] * 100 + 3.5
    (note,) = notes(frame.assign(dollars=frame["euros"] * 1.1), tmp_path, label="euros", drop=["age"])
    assert note.startswith("leak? column 'dollars' goes with the label almost exactly (rank correlation 1.0000)")


def test_auroc_counts_ties_half() -> None:
    draw = np.random.default_rng(0)
    values, positive = draw.integers(0, 6, 80).astype(float), draw.random(80) < 0.4
    assert auroc(values, positive) == pytest.approx(roc_auc_score(positive, values))
    assert ranks(np.array([5.0, 1.0, 5.0])).tolist() == [2.5, 1.0, 2.5]


def test_a_column_that_a_domain_has_nothing_of_is_noted(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[frame["hospital"] == "west", "pressure"] = np.nan
    (note,) = notes(frame, tmp_path)
    assert note.startswith("column 'pressure' has no value in any row of 'west'")
    assert "--drop 'pressure'" in note


def test_small_domains_and_absent_classes_are_noted() -> None:
    assert small_notes({"a": 20, "b": 400}) == []
    (note,) = small_notes({"a": 10, "b": 400})
    assert note.startswith("domain 'a' has 10 rows (one is 10.0 points): held out")
    present = {"a": np.array([0, 1, 2]), "b": np.array([0, 2]), "c": np.array([1])}
    assert lacking_notes(present, ["x", "y", "z"]) == ["not every domain has every class: 'b' has no 'y'"]


def test_cells_far_from_all_others_are_named_with_their_rows(tmp_path: Path) -> None:
    frame = visits(90)
    frame.loc[[4, 7], "age"] = 99_999_999
    (note,) = notes(frame, tmp_path)
    assert note.startswith("column 'age' has 1e+08 in rows 5 and 8, far from the others (half of them lie between ")
    frame = visits(90)
    frame.loc[[1, 3, 5], "age"] = 999  # 999 for "not known"
    (note,) = notes(frame, tmp_path)
    assert note.startswith("column 'age' has 999 in rows 2, 4 and 6, far from the others")
    frame = visits(90)
    frame.loc[3, "age"] = 160
    assert notes(frame, tmp_path) == []
