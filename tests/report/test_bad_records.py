"""A bench whose records are damaged, missing or mixed: the page is still made, and says what is missing."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from farfield.records import read_config, write_config
from farfield.records.bench_folder import BENCH
from farfield.report.collect import collect
from farfield.report.page import render_report
from tests.browser.bench_records import METHODS, write_bench
from tests.report.test_page import Reader

DAY = date(2026, 3, 4)


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    return write_bench(tmp_path / "bench")


def page(folder: Path) -> Reader:
    return Reader(render_report(collect(folder, "test"), DAY))


def test_a_run_that_was_killed_halfway_is_named_and_the_rest_is_provisional(bench: Path) -> None:
    (bench / "runs" / "fedprox" / "north" / "seed-1" / "result.json").unlink()
    read = page(bench)
    assert "47 of 48 runs are done, 1 failed or stopped halfway; 3 of 4" in read.sections["header"]
    assert "fedprox north 1 not finished" in read.sections["events"]
    assert "5 of 6 runs" not in read.sections["results"]
    assert "11 of 12 runs" in read.sections["results"]


def test_lines_that_cannot_be_read_are_passed_over(bench: Path) -> None:
    run = bench / "runs" / "fedavg" / "south" / "seed-0"
    for name in ("rounds.jsonl", "target.sealed.jsonl"):
        lines = (run / name).read_text().splitlines()
        (run / name).write_text("\n".join([*lines[:2], '{"round": 3, "sea', "not json", *lines[3:]]) + "\n")
    read = page(bench)
    assert "fedavg" in read.sections["results"]
    assert "No run failed." in read.sections["events"]


def test_a_method_without_some_seeds_gets_no_verdict(bench: Path) -> None:
    for seed in (1, 2):
        shutil.rmtree(bench / "runs" / "scaffold" / "west" / f"seed-{seed}")
    read = page(bench)
    assert "For scaffold there are too few results to say." in read.sections["header"]
    assert (
        "2 runs not started: scaffold, west held out, seed 1; scaffold, west held out, seed 2."
        in (read.sections["events"])
    )


def test_a_method_without_a_domain_says_over_how_many_its_mean_is(bench: Path) -> None:
    shutil.rmtree(bench / "runs" / "scaffold" / "west")
    text = page(bench).sections["results"]
    assert "over 3 of 4 domains" in text
    assert "means over different domains do not compare" in text


def test_a_bench_before_its_first_result_has_a_page(bench: Path) -> None:
    shutil.rmtree(bench / "runs")
    read = page(bench)
    assert "No run has finished, so there is nothing to report yet." in read.sections["header"]
    assert "0 of 48 runs are done" in read.sections["header"]
    assert METHODS[3] in read.sections["results"]


def test_damaged_extras_are_left_out(bench: Path) -> None:
    for name in ("diagnosis.json", "examples.json"):
        (bench / name).write_text('{"format": 1, "dom')
    (bench / "tuning" / "fedavg" / "north").mkdir(parents=True)
    (bench / "tuning" / "fedavg" / "north" / "trials.jsonl").write_text('{"number": 0}\nnot json\n')
    read = page(bench)
    assert not {"diagnosis", "tuning"} & set(read.sections)
    assert "fedavg" in read.sections["results"]


def copied(bench: Path, **changes: Any) -> Path:
    """Copy a run of the bench to a folder of its own, with another configuration."""
    run = bench / "runs" / "fedavg" / "mars" / "seed-0"
    shutil.copytree(bench / "runs" / "fedavg" / "north" / "seed-0", run)
    write_config(run / "config.toml", {**read_config(run / "config.toml"), **changes})
    return run


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"held_out": "mars"}, "is not in the plan"),
        ({"held_out": "north", "group": ["north", "mars"]}, "is not in the plan"),
        ({"held_out": "north", "data": "fedcba9876543210"}, "was made with other data"),
    ],
)
def test_a_run_of_another_bench_is_left_out_and_named(bench: Path, changes: dict[str, Any], why: str) -> None:
    copied(bench, **changes)
    sweep = collect(bench, "test")
    assert len(sweep.rows) == 48
    assert f"the run in 'runs/fedavg/mars/seed-0' {why} and is left out" in sweep.plan["notes"]


def test_a_run_of_a_fold_with_other_domains_is_left_out(bench: Path) -> None:
    plan = read_config(bench / BENCH)
    write_config(bench / BENCH, {**plan, "folds": {"north": ["north"], "south+east": ["south", "east"]}})
    sweep = collect(bench, "test")
    assert {row["held_out"] for row in sweep.rows} == {"north"}
    assert sum("is not in the plan" in note for note in sweep.plan["notes"]) == 36
