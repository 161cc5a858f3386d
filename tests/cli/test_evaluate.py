"""`farfield evaluate` as a user types it: tables, and folders of images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.image_files import make_folder, save
from tests.tasks.tables import visits, write

Command = Callable[..., Any]
IMAGES = ("--image-size", "16", "--rounds", "2", "--set", "model.hidden=[8]", "--set", "model.norm=none")


@pytest.fixture
def model(farfield: Command, tmp_path: Path) -> None:
    write(visits(90), tmp_path / "visits.csv")
    columns = ("--label", "died", "--domain", "hospital")
    assert farfield("train", "--data", "visits.csv", *columns, "--rounds", "2", "--out", "m").code == 0


@pytest.mark.usefixtures("model")
def test_it_prints_a_line_a_domain_and_writes_the_figures(farfield: Command, tmp_path: Path) -> None:
    new = visits(60, seed=2).replace({"hospital": {"north": "ulm", "south": "lyon", "west": "graz"}})
    write(new.rename(columns={"died": "dead"}), tmp_path / "new.csv")
    ran = farfield("evaluate", "m", "new.csv", "--label", "dead", "--domain", "hospital", "--json", "e.json")
    assert (ran.code, ran.err) == (0, "")
    first, _, second = ran.out.partition("Ranking and calibration")
    lines = [line.split()[:2] for line in first.splitlines() if line.strip()]
    assert "slope" in second
    assert [line for line in lines if line[0] in ("ulm", "lyon", "graz", "all")] == [
        ["ulm", "20"],
        ["lyon", "20"],
        ["graz", "20"],
        ["all", "60"],
    ]
    figures = json.loads((tmp_path / "e.json").read_text())
    assert figures["rows"] == 60
    assert [d["name"] for d in figures["domains"]] == ["ulm", "lyon", "graz"]
    assert set(figures["metrics"]) >= {"accuracy", "macro_f1", "loss", "auroc", "average_precision", "ece", "brier"}
    assert figures["accuracy_95"][0] < figures["metrics"]["accuracy"] < figures["accuracy_95"][1]


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["nowhere.csv"], "there is no file 'nowhere.csv'"),
        (["visits.csv", "--label", "dyed"], "did you mean 'died'?"),
        (["visits.csv", "--domain", "clinic"], "there is no column 'clinic' for the domain"),
        (["visits.csv", "--json", "no/where.json"], "there is no folder 'no' to write 'where.json' into"),
        (["empty"], "'empty' is a folder, and this model was trained on rows of a table"),
    ],
)
def test_a_mistake_gets_one_sentence(farfield: Command, tmp_path: Path, arguments: list[str], phrase: str) -> None:
    (tmp_path / "empty").mkdir()
    ran = farfield("evaluate", "m", *arguments)
    assert ran.code == 2
    assert phrase in " ".join(ran.err.split())
    assert len(ran.err.strip().splitlines()) == 1
    assert ran.out == ""


def test_folders_of_images_tell_class_and_domain(
    farfield: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    make_folder(tmp_path / "sites")
    assert farfield("train", "--data", "sites", *IMAGES, "--out", "m").code == 0
    make_folder(tmp_path / "new", {"ulm": {"cat": 3, "dog": 2}, "graz": {"cat": 1, "dog": 4}})
    save(tmp_path / "new" / "graz" / "horse" / "1.png", 99, "horse")
    ran = farfield("evaluate", "m", "new", "--json", "both.json")
    assert ran.code == 0, ran.err
    assert "1 of 11 rows have classes that the model never learned and are left out: 'horse' (1)" in ran.err
    both = json.loads((tmp_path / "both.json").read_text())
    assert {d["name"]: d["rows"] for d in both["domains"]} == {"graz": 5, "ulm": 5}
    assert both["by_class"]["cat"]["rows"] == 4
    farfield("evaluate", "m", "new/ulm", "--json", "ulm.json")
    one = json.loads((tmp_path / "ulm.json").read_text())
    assert one["domains"] == []
    ulm = next(d for d in both["domains"] if d["name"] == "ulm")
    assert one["metrics"] == pytest.approx(ulm["metrics"])
    assert farfield("evaluate", "m", "new/ulm/cat", "--json", "cat.json").code == 0
    assert json.loads((tmp_path / "cat.json").read_text())["by_class"]["cat"]["rows"] == 3
    files = [str(path) for path in sorted((tmp_path / "new/ulm/cat").iterdir())]
    assert farfield("evaluate", "m", *files, "--json", "files.json").code == 0
    assert json.loads((tmp_path / "files.json").read_text()) == json.loads((tmp_path / "cat.json").read_text())
    wrong = farfield("evaluate", "m", "new", "--label", "animal")
    assert (wrong.code, "the folders' names tell both" in wrong.err) == (2, True)


def test_the_column_that_figures_are_told_by_changes_nothing_about_the_rows(farfield: Command, tmp_path: Path) -> None:
    ward = visits(90)["age"].gt(60).map({True: "01", False: "02"})
    write(visits(90).assign(ward=ward, floor="007"), tmp_path / "v.csv")
    columns = ("--label", "died", "--domain", "hospital", "--categorical", "ward", "--drop", "floor")
    assert farfield("train", "--data", "v.csv", *columns, "--rounds", "2", "--out", "m").code == 0
    told = {}
    for domain in ("hospital", "ward", "floor"):
        assert farfield("evaluate", "m", "v.csv", "--domain", domain, "--json", "e.json").code == 0
        told[domain] = json.loads((tmp_path / "e.json").read_text())
    assert told["ward"]["metrics"] == pytest.approx(told["hospital"]["metrics"])
    assert told["floor"]["metrics"] == pytest.approx(told["hospital"]["metrics"])
    assert {d["name"] for d in told["ward"]["domains"]} == {"01", "02"}


def test_a_label_that_is_no_finite_number_is_named_by_its_row(farfield: Command, tmp_path: Path) -> None:
    frame = visits(60).drop(columns="died")
    write(frame, tmp_path / "v.csv")
    train = ("train", "--data", "v.csv", "--label", "age", "--domain", "hospital", "--rounds", "2", "--out", "m")
    assert farfield(*train).code == 0
    frame.loc[[7, 9], "age"] = [float("inf"), 1e300]
    write(frame, tmp_path / "new.csv")
    ran = farfield("evaluate", "m", "new.csv")
    assert (ran.code, ran.out) == (2, "")
    assert "the label 'age' of 'new.csv' has an infinite or far too large value in rows 8 and 10" in ran.err


def test_a_folder_of_training_images_is_told_by_its_own_name(
    farfield: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    make_folder(tmp_path / "sites")
    assert farfield("train", "--data", "sites", *IMAGES, "--out", "m").code == 0
    for place in ("sites/north", "sites/north/cat"):
        assert "the model was trained on domains of the names 'north'" in farfield("evaluate", "m", place).err


def test_classes_that_are_codes_are_read_as_codes_whichever_of_them_a_site_has(
    farfield: Command, tmp_path: Path
) -> None:
    frame = visits(90)
    frame["died"] = frame["died"].map({"yes": "01", "no": "1"})
    frame.loc[::9, "died"] = "other"
    write(frame, tmp_path / "v.csv")
    columns = ("--label", "died", "--domain", "hospital")
    assert farfield("train", "--data", "v.csv", *columns, "--rounds", "2", "--out", "m").code == 0
    some = frame[frame["died"] != "other"]
    write(some, tmp_path / "some.csv")
    assert farfield("evaluate", "m", "some.csv", "--json", "e.json").code == 0
    by_class = json.loads((tmp_path / "e.json").read_text())["by_class"]
    assert {name: by_class[name]["rows"] for name in ("01", "1")} == some["died"].value_counts().to_dict()


def test_no_image_of_a_folder_is_replaced_by_results(
    farfield: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    root = make_folder(tmp_path / "sites")
    assert farfield("train", "--data", "sites", *IMAGES, "--out", "m").code == 0
    image = next(root.rglob("*.png"))
    before = image.read_bytes()
    name = str(image.relative_to(tmp_path))
    for command in (["predict", "m", "sites", "--to", name], ["evaluate", "m", "sites", "--json", name]):
        ran = farfield(*command)
        assert (ran.code, image.read_bytes()) == (2, before)
        assert "is what is read" in ran.err
