"""Benches that are unfinished, damaged or have many domains: tables and pages are made and say what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import quantiles

import pytest

import farfield as ff
from farfield.report.collect import collect
from farfield.report.tables import result_table
from tests.report.sweeps import sweep
from tests.toy import task


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unfinished") / "b"
    ff.bench(task(3), ["fedavg", "fedprox"], seeds=2, rounds=2, out=out)
    return out


@pytest.fixture
def bench(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "b"))


def test_no_mean_is_called_over_domains_that_have_no_result(bench: Path) -> None:
    for path in (bench / "runs").glob("*/c/*"):
        shutil.rmtree(path)
    for path in (bench / "runs").glob("fedprox/b/*"):
        shutil.rmtree(path)
    of = collect(bench, "test")
    notes = " ".join(result_table(of, "last").notes())
    assert "mean: over the held-out domains that have a result (1 to 2 of 3)" in notes
    assert of.completeness.sentence == (
        "6 of 12 runs are done; 1 of 3 held-out domains are complete: read this as provisional."
    )
    assert of.completeness.missing == of.missing == 6


def test_damaged_files_cost_their_run_and_are_named(bench: Path) -> None:
    (bench / "runs/fedavg/a/seed-0/config.toml").write_text("rounds = [")
    (bench / "runs/fedavg/a/seed-1/result.json").write_text('{"rounds": 2')
    with (bench / "runs/fedprox/a/seed-0/rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "val\n7\n[]\n{"loss": 1}\n')
    with (bench / "runs/fedprox/a/seed-0/target.sealed.jsonl").open("a") as file:
        file.write('{"round": 2, "sealed": "not sealed"}\n{"round": 2}\nnull\n')
    of = collect(bench, "test")
    assert len(of.rows) == 10
    left_out = [note for note in of.plan["notes"] if "cannot be read and is left out" in note]
    assert [note.split("'")[1] for note in left_out] == ["runs/fedavg/a/seed-0", "runs/fedavg/a/seed-1"]
    page = ff.BenchResult(of).report().read_text()
    assert "cannot be read and is left out" in page


def test_many_domains_get_quartiles_in_place_of_columns() -> None:
    values = {f"site {n}": [n / 100] for n in range(40)}
    table = result_table(sweep({"fedavg": values}), "last", "accuracy")
    headings = [column.heading for column in table.grid().columns]
    assert headings[-4:] == ["worst domain", "lower quartile", "median", "upper quartile"]
    expected = quantiles([100 * n / 100 for n in range(40)], n=4, method="inclusive")
    assert [cell.text for cell in table.grid().rows[0][-3:]] == [f"{q:.1f}" for q in expected]
    assert len([key for key in table.to_dicts()[0] if key.startswith("accuracy[")]) == 40
