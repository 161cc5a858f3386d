"""Several benches in one comparison, paired where their runs match."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.report.collect import collect
from farfield.report.comparison import bench_names, compared
from tests.older_records import without_checksums
from tests.toy import task

OPTIONS: dict[str, Any] = {"rounds": 2, "held_out": ["a", "b", "c"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("comparison")
    ff.bench(task(4), ["fedavg", "fedprox"], seeds=[0, 1], out=base / "one", **OPTIONS)
    ff.bench(task(4), ["fedavg", "fedsgd"], seeds=[1, 0, 2], rounds=2, out=base / "two")
    ff.bench(task(4), ["fedavg"], seeds=[0, 1], settings={"lr": 0.01}, out=base / "slow", **OPTIONS)
    return base


def of(folder: Path, *names: str, baseline: str | None = None) -> ff.BenchResult:
    return ff.BenchResult(compared([collect(folder / name, "test") for name in names], baseline))


@pytest.mark.slow
def test_differences_are_those_of_one_bench_with_all_methods(folder: Path, tmp_path: Path) -> None:
    together = ff.bench(task(4), ["fedavg", "fedprox", "fedsgd"], seeds=[0, 1], out=tmp_path / "b", **OPTIONS)
    apart = of(folder, "one", "two")
    assert apart.sweep.plan["algorithms"] == ["fedavg", "fedprox", "fedsgd"]
    assert apart.table("last") == together.table("last")
    assert {row["bench"] for row in apart.rows} == {"one", "two"}


def test_what_only_some_have_is_left_out_and_told(folder: Path) -> None:
    notes = of(folder, "one", "two").sweep.plan["notes"]
    assert "held out in 'two' and not in all benches, so left out of the comparison: d" in notes
    assert "seed 2 of 'two': not in all benches, so left out of the comparison" in notes
    assert "the runs of fedavg are the same to the bit in 'one' and 'two', so they stand here once" in notes


def test_labels_that_stand_for_other_runs_get_the_folders_name(folder: Path) -> None:
    result = of(folder, "one", "slow")
    assert result.sweep.plan["algorithms"] == ["fedavg (one)", "fedprox", "fedavg (slow)"]
    table = {line.algorithm: line for line in result.results("last").lines}
    assert result.results().baseline == "fedavg (one)"
    difference = table["fedavg (slow)"].difference
    assert difference is not None
    values = {
        name: {
            (r["held_out"], r["seed"]): r["selection"]["last"]["accuracy"]
            for r in result.rows
            if r["algorithm"] == name
        }
        for name in ("fedavg (one)", "fedavg (slow)")
    }
    by_hand = fmean(values["fedavg (slow)"][key] - value for key, value in values["fedavg (one)"].items())
    assert difference.mean == pytest.approx(by_hand)


def test_a_baseline_can_be_named(folder: Path) -> None:
    assert of(folder, "one", "two", baseline="fedsgd").results().baseline == "fedsgd"
    with pytest.raises(UserError, match="there is no 'scaffold' to compare with; the comparison has fedavg, fedprox"):
        of(folder, "one", "two", baseline="scaffold")


def test_other_tasks_and_other_data_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "renamed")
    text = (without_checksums(tmp_path / "renamed") / "bench.toml").read_text()
    (tmp_path / "renamed/bench.toml").write_text(text.replace('task = "toy"', 'task = "other"'))
    with pytest.raises(UserError, match="different tasks, 'toy' and 'other'"):
        compared([collect(folder / "one", "test"), collect(tmp_path / "renamed", "test")])
    ff.bench(task(3), ["fedavg"], seeds=1, rounds=2, out=tmp_path / "less")
    with pytest.raises(UserError, match="both of task 'toy' but of different data"):
        compared([collect(folder / "one", "test"), collect(tmp_path / "less", "test")])
    with pytest.raises(UserError, match="is given twice"):
        of(folder, "one", "one")


def test_benches_without_a_matching_run_are_refused(folder: Path, tmp_path: Path) -> None:
    ff.bench(task(4), ["fedsgd"], seeds=[7], out=tmp_path / "seeds", **OPTIONS)
    with pytest.raises(UserError, match="no seed in common: 'one' has seeds 0, 1 and 'seeds' has seeds 7; add seeds"):
        compared([collect(folder / "one", "test"), collect(tmp_path / "seeds", "test")])
    ff.bench(task(4), ["fedsgd"], seeds=1, rounds=2, held_out=["a+b+c"], out=tmp_path / "group")
    with pytest.raises(UserError, match="'a' is held out with other domains in each"):
        compared([collect(folder / "one", "test"), collect(tmp_path / "group", "test")])


def test_a_half_finished_bench_is_compared_and_says_so(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "two", tmp_path / "two")
    shutil.rmtree(tmp_path / "two/runs/fedsgd/a/seed-1")
    sweep = compared([collect(folder / "one", "test"), collect(tmp_path / "two", "test")])
    assert any(note.startswith("'two' is not finished: ") for note in sweep.plan["notes"])
    assert (sweep.completeness.done, sweep.completeness.runs) == (17, 18)


def test_settings_that_differ_are_told(folder: Path, tmp_path: Path) -> None:
    ff.bench(task(4), ["fedsgd"], seeds=2, validation=0.3, out=tmp_path / "share", **OPTIONS)
    notes = compared([collect(folder / "one", "test"), collect(tmp_path / "share", "test")]).plan["notes"]
    assert any("differ in the share of rows for validation (0.1 in 'one', 0.3 in 'share')" in note for note in notes)


def test_names_tell_folders_apart(tmp_path: Path) -> None:
    assert bench_names([tmp_path / "x/b", tmp_path / "y/b"]) == ["x/b", "y/b"]
    assert bench_names([tmp_path / "x", tmp_path / "y"]) == ["x", "y"]
