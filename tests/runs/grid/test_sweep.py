"""A sweep: a bench per point, resumable, with one table, page and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.records import sole_writer
from farfield.records.sealed import LOOKS
from farfield.report.sweep_plots import sweep_figures, x_axis
from farfield.runs.job import Job
from tests.runs.tuning.test_study import Killed, Killer
from tests.toy import task

OPTIONS: dict[str, Any] = {"seeds": 1, "held_out": ["a", "b"], "parallel": 1, "diagnose": False}


class Counter(Killer):
    """Counts runs, and never ends a sweep."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.begun: list[tuple[int, int]] = []

    def begin(self, total: int, done: int) -> None:
        self.begun.append((total, done))

    @property
    def runs(self) -> int:
        return 10**9 - self.left

    def finished(self, job: Job, error: str | None) -> None:
        assert error is None
        super().finished(job, error)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> ff.SweepResult:
    folder = tmp_path_factory.mktemp("sweep") / "s"
    over = {"rounds": [1, 4], "mu": [0.0, 10.0]}
    return ff.sweep(task(3), ["fedavg", "fedprox"], over=over, out=folder, evaluate_every=1, **OPTIONS)


def test_every_row_carries_the_swept_values_and_a_weight_of_zero_is_fedavg(swept: ff.SweepResult) -> None:
    assert len(swept.rows) == 2 * 3 * 2  # points, variants, held-out domains
    assert {json.dumps(row["sweep"]) for row in swept.rows if row["base"] == "fedavg"} == {
        '{"rounds": 1}',
        '{"rounds": 4}',
    }
    by_key = {(row["sweep"]["rounds"], row["algorithm"], row["held_out"]): row["model_sha256"] for row in swept.rows}
    for rounds in (1, 4):
        for held_out in ("a", "b"):
            assert by_key[rounds, "fedprox:mu=0", held_out] == by_key[rounds, "fedavg", held_out]
            assert by_key[rounds, "fedprox:mu=10", held_out] != by_key[rounds, "fedavg", held_out]
    plain = ff.bench(task(3), ["fedavg"], rounds=4, evaluate_every=1, **OPTIONS)
    assert by_key[4, "fedavg", "a"] == plain.rows[0]["model_sha256"]


def test_a_point_of_the_table_is_the_mean_over_domains_of_its_rows(swept: ff.SweepResult) -> None:
    for line in swept.table():
        rows = [
            row
            for row in swept.rows
            if row["base"] == line["method"]
            and row["sweep"]["rounds"] == line["rounds"]
            and row["sweep"].get("mu") == line["mu"]
        ]
        assert line["mean"] == pytest.approx(fmean(row["selection"]["source-validation"]["accuracy"] for row in rows))
        assert line["bytes"] == fmean(row["bytes_up"] + row["bytes_down"] for row in rows)


def test_bytes_to_reach_a_figure_are_those_of_the_first_round_that_reaches_it(swept: ff.SweepResult) -> None:
    reach = swept.points.reach
    assert reach is not None
    line = next(line for line in swept.table() if line["method"] == "fedavg" and line["rounds"] == 4)
    firsts = []
    for held_out in ("a", "b"):
        run = swept.folder / "points" / "rounds=4" / "runs" / "fedavg" / held_out / "seed-0"
        rows = [json.loads(text) for text in (run / "rounds.jsonl").read_text().splitlines()]
        # Two clients get and send a model of 51 float32 parameters in every round: 2 * 51 * 4 bytes each way, plus the
        # training loss of each client (eight bytes) and its number of rows, if that is counted.
        downs = [row["sent"]["down"] for row in rows]
        assert downs == [2 * 51 * 4 * round for round in (1, 2, 3, 4)]
        assert [row["sent"]["up"] - row["sent"]["down"] for row in rows] == [2 * 8 * r for r in (1, 2, 3, 4)]
        by_round = [fmean(of["accuracy"] for of in row["validation"].values()) for row in rows]
        reached = [row["sent"]["up"] + row["sent"]["down"] for row, v in zip(rows, by_round, strict=True) if v >= reach]
        firsts.append(reached[0] if reached else None)
    assert line["bytes_to_reach"] == (None if None in firsts else fmean(firsts))
    assert any(line["bytes_to_reach"] is not None for line in swept.table())


def test_the_page_has_a_panel_per_value_with_error_bars_and_needs_no_network(swept: ff.SweepResult) -> None:
    page = swept.report().read_text()
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page)
    figures = {figure.name: figure for figure in sweep_figures(swept.points)}
    assert {"metric-0", "sent-0", "reach-0", "metric-1"} <= set(figures)
    assert "mu = 10" in figures["metric-1"].caption
    for figure in figures.values():
        ElementTree.fromstring(figure.svg)
        assert figure.svg in page
    titles = re.findall(r"<title>(fedprox, 4: [^<]*)</title>", figures["metric-1"].svg)
    line = next(of for of in swept.table() if (of["rounds"], of["mu"]) == (4, 10.0))
    assert titles[0].startswith(f"fedprox, 4: {100 * line['mean']:.4g}")


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_to_the_same_rows_and_can_be_given_more_values(tmp_path: Path) -> None:
    def run(**options: Any) -> ff.SweepResult:
        given = {"over": {"rounds": [1, 2]}, "out": tmp_path / "s", **OPTIONS, **options}
        return ff.sweep(task(3), ["fedavg"], **given)

    with pytest.raises(Killed):
        run(observer=Killer(3))
    with pytest.raises(UserError, match="holds a sweep already"):
        run()
    counter = Counter()
    resumed = run(resume=True, observer=counter)
    assert counter.begun == [(4, 3)]
    assert counter.runs == 1
    whole = run(out=tmp_path / "whole")
    assert [r["model_sha256"] for r in resumed.rows] == [r["model_sha256"] for r in whole.rows]
    more = run(resume=True, over={"rounds": [1, 2, 3]})
    assert [line["rounds"] for line in more.table()] == [1, 2, 3]
    with pytest.raises(UserError, match="has rounds=3, which is not swept here"):
        run(resume=True)


def test_a_point_that_cannot_work_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at cohort=9: a cohort of 9 cannot be drawn from 2 clients"):
        ff.sweep(task(3), ["fedavg"], over={"cohort": [1, 9]}, out=tmp_path / "s", **OPTIONS)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((1, 10, 100), {1: 0.0, 10: 50.0, 100: 100.0}),  # powers of ten
        (
            (0, 1e-4, 1.0),
            {0: 100 * 0.3 / 2.6, 1e-4: 50.0, 1.0: 100 * 2.3 / 2.6},
        ),  # no power of ten is zero: side by side
        ((2, 4, 6), {4: 50.0}),
        (("iid", "split"), {"iid": 100 * 0.3 / 1.6}),
    ],
)
def test_values_stand_on_the_scale_that_suits_them(values: tuple[Any, ...], ticks: dict[Any, float]) -> None:
    axis = x_axis(values, 0.0, 100.0, every=True)
    assert {value: axis.place(value) for value in ticks} == pytest.approx(ticks)


def test_the_command_line_sweeps_and_its_report_can_be_made_again(farfield: Callable[..., Any]) -> None:
    options = ("--rounds", "1", "--seeds", "1", "--held-out", "x=2", "-j", "1", "--no-diagnose")
    ran = farfield(
        "bench", "rect-4", "-a", "fedavg,fedprox", "--sweep", "mu=0,1", *options, "--out", "s", "--json", "r"
    )
    assert ran.code == 0, ran.err
    assert [row["sweep"] for row in json.loads(Path("r").read_text())] == [{}, {"mu": 0}, {"mu": 1}]
    Path("s/report.html").unlink()
    again = farfield("report", "s")
    assert again.code == 0
    assert Path("s/report.html").exists()
    for bad in ("kappa=1,2", "mu=", "mu=1,1"):
        refused = farfield("bench", "rect-4", "-a", "fedavg,fedprox", "--sweep", bad, *options, "--out", "t")
        assert refused.code == 2
        assert len(refused.err.strip().splitlines()) <= 2
    assert not Path("t").exists()


def _small(out: Path, methods: list[str], **options: Any) -> ff.SweepResult:
    given = {**OPTIONS, "held_out": ["a"], "over": {"rounds": [1, 2]}, **options}
    return ff.sweep(given.pop("on", task(3)), methods, out=out, **given)


def test_fresh_waits_for_the_lock_and_keeps_the_count_of_looks(tmp_path: Path) -> None:
    def looks() -> list[int]:
        return [len(path.read_text().splitlines()) for path in sorted(tmp_path.rglob(LOOKS))]

    _small(tmp_path / "s", ["fedavg"])
    before, results = looks(), sorted(tmp_path.rglob("result.json"))
    assert len(before) == 2
    with sole_writer(tmp_path / "s", patience=0.0), pytest.raises(UserError, match="another process is writing"):
        _small(tmp_path / "s", ["fedprox"], fresh=True)
    assert sorted(tmp_path.rglob("result.json")) == results
    again = _small(tmp_path / "s", ["fedprox"], fresh=True)
    assert {row["algorithm"] for row in again.rows} == {"fedprox"}
    assert all(now > then for now, then in zip(looks(), before, strict=True))


def test_resuming_with_fewer_methods_keeps_the_lines_that_are_there(tmp_path: Path) -> None:
    before = _small(tmp_path / "s", ["fedavg", "fedprox"], reach=0.1)
    after = _small(tmp_path / "s", ["fedprox"], resume=True)
    assert after.table() == before.table()


def test_a_part_of_the_rows_is_planned_and_run(tmp_path: Path) -> None:
    plans: list[Any] = []
    result = _small(tmp_path / "s", ["fedavg", "fedsgd"], rows=90, over={"rounds": [1]}, ready=plans.append)
    assert {row["rounds"] for row in result.rows if row["algorithm"] == "fedsgd"} == {plans[0].rounds_of["fedsgd"]}
    assert (
        plans[0].data
        == ff.bench(
            task(3), "fedavg", rows=90, references=False, rounds=1, out=tmp_path / "b", **{**OPTIONS, "held_out": ["a"]}
        ).sweep.plan["data"]
    )
