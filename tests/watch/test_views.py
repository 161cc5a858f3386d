from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import farfield as ff
from farfield.records.atomic import append_row, keep_rows_until
from farfield.records.run import sole_writer
from farfield.watch import folder_view
from farfield.watch.bench_view import thinned
from farfield.watch.folder_view import FolderView
from farfield.watch.liveness import TimeLeft, is_locked
from tests.older_records import without_checksums
from tests.toy import task
from tests.watch.serving import state_of


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_view, "KEEP_SECONDS", 0.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "b"
    ff.bench(task(), ["fedavg", "fedprox"], rounds=4, evaluate_every=2, seeds=2, out=folder)
    return folder


@pytest.fixture
def bench(made: Path, tmp_path: Path) -> Path:
    """A finished bench that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "b"))


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def unfinish(run: Path, rounds: int) -> None:
    (run / "result.json").unlink()
    keep_rows_until(run / "rounds.jsonl", rounds)


def age(folder: Path, seconds: float) -> None:
    """Make all records look as if they had been written some time ago."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def test_figures_are_those_of_the_records(bench: Path) -> None:
    state = state_of(bench)
    runs = {m: sorted((bench / "runs" / m).glob("*/seed-*")) for m in ("fedavg", "fedprox")}
    assert state["status"] == "finished"
    assert state["runs"] == {"done": 12, "failed": 0, "total": 12}
    assert state["rounds"] == {"done": 48, "total": 48}
    for method, curve in zip(("fedavg", "fedprox"), state["curves"]["loss"], strict=True):
        assert curve["label"] == method
        expected = [[n, fmean(rows_of(run)[n - 1]["loss"] for run in runs[method])] for n in (1, 2, 3, 4)]
        assert curve["points"] == [[n, pytest.approx(value)] for n, value in expected]
    last = [rows_of(run)[3]["validation"] for run in runs["fedavg"]]
    by_hand = fmean(fmean(domain["accuracy"] for domain in row.values()) for row in last)
    assert state["methods"][0]["validation"] == pytest.approx(by_hand)
    assert state["curves"]["validation"][0]["points"][-1] == [4, pytest.approx(by_hand)]
    assert [p[0] for p in state["curves"]["validation"][0]["points"]] == [2, 4]


def test_validation_is_shown_in_the_metric_that_leads_and_left_out_where_it_is_undefined(bench: Path) -> None:
    plan = (without_checksums(bench) / "bench.toml").read_text()
    assert plan.count('metric = "accuracy"') == 1
    (bench / "bench.toml").write_text(plan.replace('metric = "accuracy"', 'metric = "auroc"'))
    aurocs = {2: {"b": 0.5, "c": 0.7}, 4: {"b": 0.75, "c": None}}
    for path in bench.glob("runs/*/*/seed-*/rounds.jsonl"):
        rows = rows_of(path.parent)
        for row in rows:
            if "validation" in row:
                row["validation"] = {d: {"loss": 1.0, "auroc": v} for d, v in aurocs[row["round"]].items()}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    state = state_of(bench)
    assert state["metric"] == "auroc"
    assert state["curves"]["validation"][0]["points"] == [[2, pytest.approx(0.6)]]

    for path in bench.glob("runs/*/*/seed-*/rounds.jsonl"):  # as an older version wrote them
        path.write_text(path.read_text().replace('"auroc": ', '"accuracy": '))
    assert state_of(bench)["metric"] == "accuracy"


def test_a_regression_is_shown_by_the_root_of_its_mean_squared_error(bench: Path) -> None:
    plan = (without_checksums(bench) / "bench.toml").read_text().replace('metric = "accuracy"', 'metric = "rmse"')
    (bench / "bench.toml").write_text(plan)
    for path in bench.glob("runs/*/*/seed-*/rounds.jsonl"):
        path.write_text('{"round": 1, "loss": 1.0, "validation": {"b": {"loss": 4.0}, "c": {"loss": 9.0}}}\n')
    state = state_of(bench)
    assert (state["metric"], state["curves"]["validation"][0]["points"]) == ("rmse", [[1, 2.5]])


def test_target_rows_are_never_opened_and_no_look_is_counted(bench: Path) -> None:
    opened: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            opened.append(os.fsdecode(arguments[0]))

    sys.addaudithook(hook)
    looks = (bench / "looks.jsonl").read_bytes()
    unfinish(bench / "runs" / "fedavg" / "a" / "seed-0", 2)
    view = FolderView(bench)
    for _ in range(2):
        view.state()
        view.report()
        append_row(
            bench / "runs" / "fedavg" / "a" / "seed-0" / "rounds.jsonl", rows_of(bench / "runs/fedavg/a/seed-1")[2]
        )
    watching = False
    assert any(path.endswith("rounds.jsonl") for path in opened)
    assert not [path for path in opened if "sealed" in path]
    assert (bench / "looks.jsonl").read_bytes() == looks


def test_progress_moves_with_the_records_and_a_resumed_run_starts_from_its_checkpoint(bench: Path) -> None:
    run = bench / "runs" / "fedavg" / "a" / "seed-0"
    whole = rows_of(run)
    unfinish(run, 1)
    view = FolderView(bench)
    seen = []
    for row in whole[1:4]:
        seen.append(json.loads(view.state())["rounds"]["done"])
        append_row(run / "rounds.jsonl", row)
    seen.append(json.loads(view.state())["rounds"]["done"])
    keep_rows_until(run / "rounds.jsonl", 2)  # killed and resumed
    seen.append(json.loads(view.state())["rounds"]["done"])
    assert seen == [45, 46, 47, 48, 46]
    state = json.loads(view.state())
    assert state["running"] == [
        {
            "name": "fedavg · a held out · seed 0",
            "round": 2,
            "rounds": 4,
            "loss": whole[1]["loss"],
            "validation": pytest.approx(fmean(d["accuracy"] for d in whole[1]["validation"].values())),
        }
    ]


def test_running_means_that_somebody_holds_the_lock_or_has_just_written(bench: Path) -> None:
    unfinish(bench / "runs" / "fedavg" / "a" / "seed-0", 1)
    assert state_of(bench)["status"] == "running"
    age(bench, 3600)
    state = state_of(bench)
    assert state["status"] == "stopped"
    assert "This bench is not running: 11 of 12 runs have ended" in state["headline"]
    assert "--resume" in state["headline"]
    if sys.platform == "linux":
        with sole_writer(bench, patience=0.0):
            assert is_locked(bench)
            assert state_of(bench)["status"] == "running"
        assert not is_locked(bench)


def test_looking_at_the_lock_does_not_take_it(bench: Path) -> None:
    for _ in range(20):
        state_of(bench)
        with sole_writer(bench, patience=0.0):
            pass


def test_a_folder_that_is_not_there_yet_is_waited_for(made: Path, tmp_path: Path) -> None:
    view = FolderView(tmp_path / "later" / "b")
    state = json.loads(view.state())
    assert state["status"] == "waiting"
    assert state["headline"].startswith("This folder does not exist yet.")
    (tmp_path / "later" / "b").mkdir(parents=True)
    assert "no bench, training or deployment in this folder yet" in json.loads(view.state())["headline"]
    shutil.copytree(made, tmp_path / "later" / "b", dirs_exist_ok=True)
    assert json.loads(view.state())["status"] == "finished"
    shutil.rmtree(tmp_path / "later")
    assert json.loads(view.state())["status"] == "waiting"


def test_of_a_sweep_the_point_that_was_begun_last_is_shown(made: Path, tmp_path: Path) -> None:
    view = FolderView(tmp_path / "s")
    for number, point in enumerate(("mu=1", "mu=0")):
        shutil.copytree(made, tmp_path / "s" / "points" / point)
        os.utime(tmp_path / "s" / "points" / point / "bench.toml", (1000 + number, 1000 + number))
        state = json.loads(view.state())
        assert (state["status"], Path(state["folder"]).name) == ("finished", point)


def test_broken_lines_and_files_are_left_out_and_said(bench: Path) -> None:
    run = bench / "runs" / "fedavg" / "a" / "seed-0"
    unfinish(run, 2)
    without_checksums(run)
    with open(run / "rounds.jsonl", "ab") as file:
        file.write(
            b'{"round": 3, "lo\n\x00\xff\n{"round": "x"}\n{"round": 3, "loss": null, "validation": {"b": 7}}\n{"rou'
        )
    (bench / "runs" / "fedprox" / "a" / "seed-0" / "result.json").write_text("{")
    (bench / "runs" / "fedprox" / "b" / "seed-0" / "result.json").unlink()
    (bench / "runs" / "fedprox" / "b" / "seed-0" / "failure.json").write_text('{"error": "ValueError: <b>no</b>"}')
    state = state_of(bench)
    assert state["runs"] == {"done": 9, "failed": 1, "total": 12}
    assert state["failed"] == [{"name": "fedprox · b held out · seed 0", "error": "ValueError: <b>no</b>"}]
    assert state["rounds"]["done"] == 47
    assert any(problem.startswith("2 lines of the records cannot be read") for problem in state["problems"])
    (bench / "bench.toml").write_text("not = [toml")
    assert "'bench.toml' cannot be read" in state_of(bench)["problems"][0]
    (bench / "jobs.json").write_text("[{")
    assert state_of(bench)["runs"]["total"] == 12


def test_a_bench_of_an_older_version_has_no_list_of_runs(bench: Path) -> None:
    (bench / "jobs.json").unlink()
    shutil.rmtree(bench / "runs" / "fedprox" / "c")
    state = state_of(bench)
    assert state["runs"] == {"done": 10, "failed": 0, "total": 12}
    assert state["rounds"] == {"done": 40, "total": 48}


def test_a_list_of_runs_cannot_lead_out_of_the_folder(bench: Path) -> None:
    outside = bench.parent / "outside"
    shutil.copytree(bench / "runs" / "fedavg" / "a" / "seed-0", outside)
    entry = {"algorithm": "x", "held_out": "a", "inner": None, "seed": 0, "rounds": 4, "folder": "../outside"}
    (bench / "jobs.json").write_text(json.dumps([entry]))
    assert state_of(bench)["rounds"]["done"] == 0


def test_a_bench_that_tunes_first_says_how_many_trials_are_made(bench: Path) -> None:
    shutil.rmtree(bench / "runs")
    (bench / "jobs.json").unlink()
    tuning = '\n[tuning]\ntrials = 5\n[tuning.parameters]\nfedavg = ["lr"]\nfedprox = ["lr", "mu"]\n'
    with open(bench / "bench.toml", "a") as file:
        file.write(tuning)
    for number in (0, 1, 1):
        trial = bench / "tuning" / "fedavg" / "a" / "trials.jsonl"
        trial.parent.mkdir(parents=True, exist_ok=True)
        append_row(trial, {"number": number, "algorithm": "fedavg"})
    with sole_writer(bench, patience=0.0):
        state = state_of(bench)
    if sys.platform == "linux":
        # Five trials for two methods and three held-out domains.
        assert state["headline"].endswith("0 of 12 runs have ended. It is tuning first: 2 of 30 trials are made.")


def test_a_fresh_bench_in_the_same_folder_is_shown_anew(bench: Path) -> None:
    view = FolderView(bench)
    assert json.loads(view.state())["runs"]["total"] == 12
    ff.bench(task(), ["scaffold"], rounds=2, seeds=1, held_out=["a"], out=bench, fresh=True)
    state = json.loads(view.state())
    assert [m["label"] for m in state["methods"]] == ["scaffold"]
    assert state["rounds"] == {"done": 2, "total": 2}


def test_inner_runs_count_for_progress_and_not_for_the_curves(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 2, "seeds": 1, "held_out": ["a"], "rules": ["leave-one-domain-out"]}
    ff.bench(task(), ["fedavg"], out=tmp_path / "b", **options)
    state = state_of(tmp_path / "b")
    assert state["runs"]["total"] == 3
    (curve,) = state["curves"]["loss"]
    run = tmp_path / "b" / "runs" / "fedavg" / "a" / "seed-0"
    assert [p[1] for p in curve["points"]] == [row["loss"] for row in rows_of(run)]


def test_a_training_is_shown_with_its_rounds(tmp_path: Path) -> None:
    ff.train(task(), "fedavg", tmp_path / "m", rounds=3)
    state = state_of(tmp_path / "m")
    assert (state["kind"], state["status"], state["title"]) == ("training", "finished", "toy · fedavg")
    assert state["rounds"] == {"done": 3, "total": 3}
    assert [row["round"] for row in state["replies"]] == [3, 2, 1]
    assert not state["report"]


def test_a_deployment_is_shown_with_who_replied_and_without_what_evaluating_sites_measured(tmp_path: Path) -> None:
    ff.train(task(), "fedavg", tmp_path / "m", rounds=3)
    run, flower = tmp_path / "m" / "run", tmp_path / "m" / "flower"
    flower.mkdir()
    sites = {"north": "train", "<b>south</b>": "train", "west": "train", "east": "evaluate"}
    (flower / "federated.json").write_text(json.dumps({"sites": sites, "schema_": {}, "fitted": None}))
    for kind, text in (("joined", "site 'north' has joined"), ("round", "round 1"), ("measured", "east: AUROC 0.91")):
        append_row(flower / "activity.jsonl", {"time": time.time(), "start": "s", "kind": kind, "text": text})
    dropped = {
        "kind": "reply-dropped",
        "round": 2,
        "message": "its site is not connected",
        "client": 1,
        "phase": "train",
    }
    append_row(run / "events.jsonl", dropped)
    result = (run / "result.json").read_bytes()
    (run / "result.json").unlink()

    state = state_of(tmp_path / "m")
    assert (state["kind"], state["status"]) == ("deployment", "running")
    assert state["sites"][-1] == {"name": "east", "role": "evaluate"}
    by_round = {row["round"]: row for row in state["replies"]}
    assert by_round[1]["names"] == ["north", "<b>south</b>", "west"]
    assert (by_round[2]["replied"], by_round[2]["asked"]) == (2, 3)
    assert by_round[2]["names"] == ["north", "west"]
    assert by_round[2]["missing"] == [{"name": "<b>south</b>", "why": "its site is not connected"}]
    assert [event["text"] for event in state["events"]] == ["site 'north' has joined"]
    assert "0.91" not in json.dumps(state)

    append_row(flower / "activity.jsonl", {"time": time.time(), "kind": "failed", "text": "nobody came"})
    age(tmp_path / "m", 3600)
    assert state_of(tmp_path / "m")["headline"] == "The deployment has failed: nobody came"
    (run / "result.json").write_bytes(result)
    assert "east: AUROC 0.91" in [event["text"] for event in state_of(tmp_path / "m")["events"]]


def test_time_left_weighs_rounds_by_what_they_cost() -> None:
    now = [100.0]
    left = TimeLeft(clock=lambda: now[0])
    total, cost = {"quick": 100, "slow": 100}, {"quick": 1.0, "slow": 9.0}
    assert left.seconds({"quick": 0, "slow": 0}, total, cost, True) is None
    now[0] += 10
    # Half of the quick rounds took 10 s: 50 units. 50 · 1 + 100 · 9 = 950 units are left, at 5 units a second.
    assert left.seconds({"quick": 50, "slow": 0}, total, cost, True) == pytest.approx(190)
    assert left.seconds({"quick": 50, "slow": 0}, total, cost, False) is None
    now[0] += 1000
    assert left.seconds({"quick": 50, "slow": 0}, total, cost, True) is None  # a pause says nothing of the speed
    now[0] += 20
    assert left.seconds({"quick": 70, "slow": 0}, total, {}, True) == pytest.approx(130)


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    points = [(n, float(n)) for n in range(1, 1001)]
    kept = thinned(points)
    assert len(kept) == 200
    assert kept[-1] == (1000, 1000.0)
    assert thinned(points[:150]) == points[:150]
    assert thinned([]) == []


def test_while_rounds_are_added_a_shorter_result_is_not_done(bench: Path) -> None:
    listed = json.loads((bench / "jobs.json").read_text())
    view = FolderView(bench)
    assert json.loads(view.state())["status"] == "finished"
    (bench / "jobs.json").write_text(json.dumps([{**job, "rounds": 8} for job in listed]))
    state = json.loads(view.state())
    assert state["status"] == "running"
    assert state["rounds"]["done"] * 2 == state["rounds"]["total"]
    assert [method["runs"] for method in state["methods"]] == [0] * len(state["methods"])
    assert state["running"] == []
