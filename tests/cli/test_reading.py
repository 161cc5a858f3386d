"""What was read is shown before anything is trained, and not before a mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.older_records import without_checksums
from tests.tasks.tables import visits, write

Command = Callable[..., Any]
COLUMNS = ["--label", "died", "--domain", "hospital"]
SMALL = ["-a", "fedavg", "--seeds", "1", "--rounds", "1", "--out", "b"]


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    write(visits(60).assign(country="NL"), tmp_path / "visits.csv")
    return ["--data", "visits.csv", *COLUMNS]


def test_bench_shows_what_it_read_before_the_first_run(farfield: Command, table: list[str]) -> None:
    ran = farfield("bench", *table, *SMALL)
    assert ran.code == 0, ran.err
    before, _, _ = ran.err.partition("1/3 ")
    assert "visits: 60 rows in 3 domains, 2 classes, 8 features from 4 columns" in before
    assert "Every domain is held out in turn" in before
    assert "note: column 'country' was left out" in before
    lines = [line.split() for line in before.splitlines()]
    assert ["north", "20"] in [line[:2] for line in lines]
    assert ["all", "60"] in [line[:2] for line in lines]


def test_a_registered_task_shows_it_too_and_quiet_does_not(farfield: Command) -> None:
    ran = farfield("bench", "rotated-digits", "--held-out", "0,75", *SMALL)
    assert "rotated-digits: 1,797 rows in 6 domains, 10 classes" in ran.err
    assert "Held out, one at a time: 0, 75." in ran.err
    assert farfield("bench", "rotated-digits", "--held-out", "0,75", *SMALL, "--resume", "--quiet").err == ""


def test_train_shows_it_too(farfield: Command, table: list[str]) -> None:
    ran = farfield("train", *table, "--rounds", "1", "--out", "m")
    assert "visits: 60 rows in 3 domains" in ran.err
    assert "No domain is held out: all of them train." in ran.err
    assert "note: column 'country' was left out" in ran.err


def test_the_report_has_it_below_the_answer_with_the_notes(farfield: Command, table: list[str], tmp_path: Path) -> None:
    farfield("bench", *table, *SMALL, "--quiet")
    page = (tmp_path / "b" / "report.html").read_text()
    start = page.index('<section id="data">')
    assert page.index('<section id="results">') < start
    section = page[start : page.index("</section>", start)]
    assert "visits: 60 rows in 3 domains" in section
    assert "<h3>Notes</h3>" in section
    assert "country" in section


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("bench", ["-a", "fedarg"]),
        ("bench", ["--held-out", "east"]),
        ("bench", ["--rounds", "0"]),
        ("bench", ["--set", "lr=fast"]),
        ("bench", ["--workers", "0"]),
        ("train", ["-a", "fedarg"]),
        ("train", ["--cohort", "9"]),
    ],
)
def test_a_mistake_comes_without_the_notes(farfield: Command, table: list[str], command: str, wrong: list[str]) -> None:
    ran = farfield(command, *table, "--out", "x", *wrong)
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1, ran.err


def test_a_taken_folder_comes_without_the_notes(farfield: Command, table: list[str]) -> None:
    farfield("bench", *table, *SMALL, "--quiet")
    again = farfield("bench", *table, *SMALL)
    assert again.code == 2
    assert len(again.err.strip().splitlines()) == 1, again.err


def test_another_metric_can_lead_in_bench_and_in_report(farfield: Command, table: list[str], tmp_path: Path) -> None:
    ran = farfield("bench", *table, *SMALL, "--metric", "auroc", "--quiet")
    assert ran.out.startswith("AUROC on held-out domains (higher is better); rounds chosen by")
    assert "AUROC on held-out domains by round" in (tmp_path / "b" / "report.html").read_text()
    again = farfield("report", "b", "--metric", "f1")
    assert again.out.startswith("macro-F1 in % on held-out domains")
    # The bench's own metric leads where none is named.
    assert farfield("report", "b").out.startswith("AUROC on held-out domains")


def test_a_metric_that_is_none_is_refused_before_anything_runs(
    farfield: Command, table: list[str], tmp_path: Path
) -> None:
    ran = farfield("bench", *table, *SMALL, "--metric", "sharpness")
    assert (ran.code, (tmp_path / "b").exists()) == (2, False)
    assert "there is no metric 'sharpness'; choose one of accuracy, balanced_accuracy, macro_f1" in ran.err


def test_train_names_the_bench_with_the_same_groups(farfield: Command, tmp_path: Path) -> None:
    write(visits(60).assign(patient=[f"p{i // 6}-{i % 3}" for i in range(60)]), tmp_path / "v.csv")
    ran = farfield("train", "--data", "v.csv", *COLUMNS, "--group", "patient", "--rounds", "1", "--out", "m")
    assert ran.code == 0, ran.err
    assert "--group patient" in ran.out
    assert farfield("predict", "m", "v.csv").code == 0


def test_predict_counts_rows_from_one_as_the_notes_do(farfield: Command, table: list[str], tmp_path: Path) -> None:
    farfield("train", *table, "--rounds", "1", "--out", "m")
    frame = visits(9)
    frame.loc[0, "ward"] = "maternity"
    write(frame, tmp_path / "new.csv")
    ran = farfield("predict", "m", "new.csv")
    assert "'maternity' in row 1," in ran.err
    assert [line.split(",")[0] for line in ran.out.splitlines()] == ["row", *map(str, range(1, 10))]
    assert "counted from 1" in " ".join(farfield("predict", "--help").out.split())


@pytest.mark.slow
def test_a_folder_that_is_taken_names_the_ways_out(farfield: Command, table: list[str]) -> None:
    farfield("bench", *table, *SMALL, "--quiet")
    again = " ".join(farfield("bench", *table, *SMALL).err.split())
    assert "'b' holds this bench already; add --resume to go on or --fresh to replace it, or choose another" in again
    other = " ".join(farfield("bench", *table, *SMALL, "--validation", "0.2").err.split())
    assert "validation is 0.1 there and 0.2 here; set it back and add --resume, replace" in other
    farfield("train", *table, "--rounds", "1", "--out", "m")
    assert "add --resume to go on" in farfield("train", *table, "--rounds", "1", "--out", "m").err
    assert "add --resume" in farfield("train", *table, "--rounds", "2", "--out", "m").err


@pytest.mark.parametrize("name", ["visits.XLS", "visits.ods"])
def test_a_spreadsheet_is_to_be_saved_as_csv(farfield: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    ran = farfield("bench", "--data", name, *COLUMNS)
    assert ran.code == 2
    assert f"'{name}' is a spreadsheet" in ran.err
    assert "save its sheet as CSV" in " ".join(ran.err.split())


def test_a_bench_goes_on_although_its_notes_are_worded_otherwise(
    farfield: Command, table: list[str], tmp_path: Path
) -> None:
    farfield("bench", *table, *SMALL, "--quiet")
    plan = tmp_path / "b" / "bench.toml"
    without_checksums(tmp_path / "b")
    plan.write_text(plan.read_text().replace("was left out", "was not used"))
    assert farfield("bench", *table, *SMALL, "--quiet", "--resume").code == 0
