from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.algorithms import State
from farfield.federation.federation import Federation
from farfield.records import RunFolder
from farfield.records.atomic import append_row, keep_rows_until
from farfield.records.bench_folder import TRACKERS
from farfield.records.follow import RowFollower
from farfield.runs.callbacks import CallbackWarning
from farfield.runs.job import Job
from farfield.runs.plan import Plan
from tests.toy import task


class Diary(ff.Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.rows: dict[Job, list[Mapping[str, Any]]] = {}
        self.results: dict[Job, Mapping[str, Any]] = {}
        self.result: ff.BenchResult | None = None

    def on_bench_start(self, plan: Plan, folder: Path) -> None:
        self.hooks.append("start")
        self.plan, self.folder = plan, folder

    def on_round(self, job: Job, row: Mapping[str, Any]) -> None:
        self.hooks.append("round")
        self.rows.setdefault(job, []).append(row)

    def on_run_end(self, job: Job, result: Mapping[str, Any]) -> None:
        self.hooks.append("run end")
        assert job not in self.results
        self.results[job] = result

    def on_bench_end(self, result: ff.BenchResult) -> None:
        self.hooks.append("end")
        self.result = result

    def close(self) -> None:
        self.hooks.append("close")


def small_bench(out: Path, *callbacks: ff.Callback, **more: Any) -> ff.BenchResult:
    options: dict[str, Any] = {"rounds": 4, "seeds": 1, "evaluate_every": 2, "out": out, **more}
    return ff.bench(task(), ["fedavg", "fedprox"], callbacks=callbacks, **options)


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_callback_hears_every_row_of_every_run_once_and_the_result_last(tmp_path: Path, parallel: int) -> None:
    diary = Diary()
    result = small_bench(tmp_path / "b", diary, parallel=parallel)

    assert diary.hooks[0] == "start"
    assert diary.hooks[-2:] == ["end", "close"]
    assert diary.result is result
    assert diary.folder == tmp_path / "b"
    assert set(diary.rows) == set(diary.results)
    assert len(diary.rows) == len(result.rows)
    for job, rows in diary.rows.items():
        run = RunFolder(job.folder(tmp_path / "b"))
        assert rows == run.rounds()
        assert [row["round"] for row in rows] == [1, 2, 3, 4]
        assert diary.results[job] == run.result
        assert "validation" in rows[1]
        assert "validation" not in rows[2]


def test_rounds_say_nothing_of_the_held_out_domain(tmp_path: Path) -> None:
    diary = Diary()
    small_bench(tmp_path / "b", diary)
    for job, rows in diary.rows.items():
        for row in rows:
            assert set(row) <= {"round", "clients", "loss", "diagnostics", "sent", "validation"}
            assert job.held_out not in row.get("validation", {})


def test_a_callback_that_raises_is_warned_of_once_and_the_others_go_on(tmp_path: Path) -> None:
    class Broken(Diary):
        def on_round(self, job: Job, row: Mapping[str, Any]) -> None:
            super().on_round(job, row)
            raise RuntimeError("it is on fire")

    broken, diary = Broken(), Diary()
    with pytest.warns(CallbackWarning, match=r"Broken failed in on_round.*RuntimeError: it is on fire") as said:
        result = small_bench(tmp_path / "b", broken, diary)
    assert len(said) == 1
    assert broken.hooks == ["start", "round", "close"]
    assert len(result.rows) == len(diary.results) == 6
    assert diary.hooks.count("round") == 24


def test_a_resumed_bench_tells_the_rounds_of_before_and_repeats_none(tmp_path: Path) -> None:
    whole = Diary()
    small_bench(tmp_path / "b", whole)
    jobs = list(whole.rows)

    # One run is done; one was killed after three rounds, before its first checkpoint; the others have not begun.
    for job in jobs[1:]:
        run = RunFolder(job.folder(tmp_path / "b"))
        (run.path / "result.json").unlink()
        for checkpoint in run.path.glob("checkpoint-*"):
            checkpoint.unlink()
        for name in ("rounds.jsonl", "target.sealed.jsonl"):
            keep_rows_until(run.path / name, 3 if job == jobs[1] else 0)
    again = Diary()
    small_bench(tmp_path / "b", again, resume=True)
    assert again.rows == whole.rows
    assert again.hooks.count("round") == 24
    assert set(again.results) == set(jobs)


def test_an_interrupted_bench_closes_its_callbacks(tmp_path: Path) -> None:
    class Impatient(Diary):
        def on_round(self, job: Job, row: Mapping[str, Any]) -> None:
            super().on_round(job, row)
            raise KeyboardInterrupt

    impatient = Impatient()
    with pytest.raises(KeyboardInterrupt):
        small_bench(tmp_path / "b", impatient, parallel=1)
    assert impatient.hooks == ["start", "round", "close"]


class Failing(ff.FedAvg):
    name = "failing"

    def round(self, fed: Federation, state: State) -> State:
        raise RuntimeError("no server is left")


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_run_that_fails_is_told_with_its_error(tmp_path: Path, parallel: int) -> None:
    diary = Diary()
    ff.bench(task(), [Failing], rounds=2, seeds=1, out=tmp_path / "b", callbacks=[diary], parallel=parallel)
    assert [told["error"] for told in diary.results.values()] == ["RuntimeError: no server is left"] * 3
    assert diary.rows == {}
    assert diary.hooks[-2:] == ["end", "close"]


def test_a_training_tells_its_rounds_and_has_no_held_out_result(tmp_path: Path) -> None:
    diary = Diary()
    ff.train(task(), "fedavg", tmp_path / "m", rounds=3, callbacks=[diary])
    assert diary.hooks == ["start", "round", "round", "round", "run end", "close"]
    (job,) = diary.rows
    assert diary.rows[job] == RunFolder(tmp_path / "m" / "run").rounds()

    again = Diary()
    ff.train(task(), "fedavg", tmp_path / "m", rounds=3, resume=True, callbacks=[again])
    assert again.rows == diary.rows
    assert again.hooks == diary.hooks


def test_what_is_no_callback_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ff.UserError, match=r"callbacks takes objects of farfield.Callback, not 'tensorboard'"):
        small_bench(tmp_path / "b", "tensorboard")  # type: ignore[arg-type]
    assert not (tmp_path / "b").exists()


def test_fresh_forgets_what_trackers_kept(tmp_path: Path) -> None:
    small_bench(tmp_path / "b")
    (tmp_path / "b" / TRACKERS).mkdir()
    (tmp_path / "b" / TRACKERS / "identity.json").write_text("{}")
    small_bench(tmp_path / "b", fresh=True)
    assert not (tmp_path / "b" / TRACKERS).exists()


def test_a_follower_returns_each_row_once_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    follower = RowFollower(path)
    assert follower.new_rows() == []
    path.write_text('{"round": 1}\n')
    with open(path, "a") as file:
        file.write('{"round": 2')
    assert follower.new_rows() == [{"round": 1}]
    assert follower.new_rows() == []
    with open(path, "a") as file:
        file.write("}\n")
    assert follower.new_rows() == [{"round": 2}]
    assert (follower.starts, follower.broken) == (0, 0)


def test_a_follower_passes_over_broken_lines_and_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"round": 1}\n{"rou\n\xff\xfe\n[1]\n\n{"round": 2}\n')
    follower = RowFollower(path)
    assert follower.new_rows() == [{"round": 1}, {"round": 2}]
    assert follower.broken == 3


def test_a_follower_starts_over_when_the_file_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for number in range(1, 6):
        append_row(path, {"round": number})
    follower = RowFollower(path)
    assert len(follower.new_rows()) == 5
    keep_rows_until(path, 2)
    for number in range(3, 8):
        append_row(path, {"round": number})
    assert [row["round"] for row in follower.new_rows()] == [1, 2, 3, 4, 5, 6, 7]
    assert follower.starts == 1

    # Also when the new content stands in the same file, and is longer.
    path.write_text("".join(json.dumps({"round": n, "again": True}) + "\n" for n in range(20)))
    assert len(follower.new_rows()) == 20
    assert follower.starts == 2
