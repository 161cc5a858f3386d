"""The commands as a user types them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

Command = Callable[..., Any]
FIELDS = {
    "task",
    "algorithm",
    "held_out",
    "seed",
    "rounds",
    "local_steps",
    "bytes_up",
    "bytes_down",
    "seconds",
    "model_sha256",
    "selection",
}


@pytest.mark.slow
def test_bench_writes_a_row_a_run_with_every_rule_measured_on_the_held_out_domain(farfield: Command) -> None:
    ran = farfield(
        "bench",
        "rotated-digits",
        "-a",
        "fedavg,scaffold",
        "--held-out",
        "0,45",
        "--seeds",
        "2",
        "--rounds",
        "4",
        "--out",
        "b",
        "--json",
        "rows.json",
        "--quiet",
    )
    assert ran.code == 0
    rows = json.loads(Path("rows.json").read_text())
    assert {(r["algorithm"], r["held_out"], r["seed"]) for r in rows} == {
        (a, d, s) for a in ("fedavg", "scaffold") for d in ("0", "45") for s in (0, 1)
    }
    for row in rows:
        assert set(row) >= FIELDS
        assert set(row["selection"]) == {"source-validation", "last", "oracle"}
        assert row["selection"]["last"]["round"] == 4
        assert row["selection"]["oracle"]["accuracy"] >= row["selection"]["last"]["accuracy"]
        assert 0 <= row["selection"]["source-validation"]["accuracy"] <= 1
        assert len(row["model_sha256"]) == 64
    assert len({r["model_sha256"] for r in rows}) == 8
    assert "fedavg" in ran.out
    assert "report.html" in ran.out
    assert Path("b/report.html").stat().st_size > 10_000


def test_scaffold_sends_twice_what_fedavg_sends(farfield: Command) -> None:
    farfield(
        "bench",
        "rotated-digits",
        "-a",
        "fedavg,scaffold",
        "--held-out",
        "0",
        "--seeds",
        "1",
        "--rounds",
        "3",
        "--out",
        "b",
        "--json",
        "rows.json",
        "--quiet",
    )
    fedavg, scaffold = json.loads(Path("rows.json").read_text())
    parameters = 8970 * 4
    assert fedavg["bytes_up_by_phase"]["train"] == 3 * 5 * (parameters + 8)
    assert scaffold["bytes_up_by_phase"]["train"] == 3 * 5 * (2 * parameters + 8)
    assert fedavg["bytes_down_by_phase"]["train"] == 3 * 5 * parameters
    assert scaffold["bytes_down_by_phase"]["train"] == 3 * 5 * 2 * parameters
    assert fedavg["local_steps"] == scaffold["local_steps"]


@pytest.mark.slow
def test_the_same_command_twice_and_with_workers_gives_the_same_models(farfield: Command) -> None:
    hashes = []
    for number, more in enumerate(([], [], ["--workers", "2"], ["--parallel", "1"])):
        ran = farfield(
            "bench",
            "rotated-digits",
            "-a",
            "fedavg,fedprox+fedyogi,local-only",
            "--held-out",
            "30",
            "--seeds",
            "1",
            "--rounds",
            "3",
            "--out",
            f"b{number}",
            "--json",
            f"{number}.json",
            "--quiet",
            *more,
        )
        assert ran.code == 0
        hashes.append([r["model_sha256"] for r in json.loads(Path(f"{number}.json").read_text())])
    assert hashes[0] == hashes[1] == hashes[2] == hashes[3]


@pytest.mark.slow
def test_a_resumed_sweep_runs_only_what_is_missing(farfield: Command) -> None:
    command = ["bench", "rotated-digits", "-a", "fedavg,fedsgd", "--held-out", "0,15", "--seeds", "1", "--rounds", "2"]
    assert farfield(*command, "--out", "b", "--json", "first.json", "--quiet").code == 0
    first = json.loads(Path("first.json").read_text())
    kept = Path("b/runs/fedavg/0/seed-0/result.json")
    before = kept.stat().st_mtime_ns
    for file in Path("b/runs/fedsgd/15/seed-0").iterdir():
        file.unlink()
    ran = farfield(*command, "--out", "b", "--resume", "--json", "second.json")
    assert ran.code == 0
    assert "3 of 4 runs are there already" in ran.err
    assert kept.stat().st_mtime_ns == before
    hashes = [[r["model_sha256"] for r in rows] for rows in (first, json.loads(Path("second.json").read_text()))]
    assert hashes[0] == hashes[1]


@pytest.mark.slow
def test_nested_selection_trains_inner_runs_and_chooses_by_them(farfield: Command) -> None:
    ran = farfield(
        "bench",
        "rect-4",
        "-a",
        "fedavg,erm",
        "--seeds",
        "1",
        "--rounds",
        "4",
        "--select",
        "leave-one-domain-out,last",
        "--out",
        "b",
        "--json",
        "rows.json",
        "--quiet",
    )
    assert ran.code == 0
    rows = json.loads(Path("rows.json").read_text())
    assert all(1 <= r["selection"]["leave-one-domain-out"]["round"] <= 4 for r in rows)
    assert len(list(Path("b/runs").rglob("inner-*/seed-0/result.json"))) == 2 * 4 * 3


def test_clients_and_cohorts_are_as_asked(farfield: Command) -> None:
    ran = farfield(
        "bench",
        "rotated-digits",
        "-a",
        "fedavg",
        "--held-out",
        "0",
        "--seeds",
        "1",
        "--rounds",
        "3",
        "--clients",
        "20",
        "--cohort",
        "4",
        "--out",
        "b",
        "--json",
        "rows.json",
        "--quiet",
    )
    assert ran.code == 0
    (row,) = json.loads(Path("rows.json").read_text())
    assert row["clients"] == 20
    rounds = [json.loads(line) for line in Path("b/runs/fedavg/0/seed-0/rounds.jsonl").read_text().splitlines()]
    assert [r["clients"] for r in rounds] == [4, 4, 4]
    assert row["bytes_up_by_phase"]["train"] == 3 * 4 * (8970 * 4 + 8)


def test_list_and_show_say_what_there_is(farfield: Command) -> None:
    algorithms = {a["name"]: a for a in json.loads(farfield("list", "algorithms", "--json").out)}
    assert set(algorithms) >= {
        "fedavg",
        "fedsgd",
        "fedprox",
        "scaffold",
        "fedavgm",
        "fedadam",
        "fedyogi",
        "erm",
        "local-only",
    }
    assert algorithms["fedsgd"]["phases"] == ["full_gradient"]
    assert algorithms["fedadam"]["composable"] == "client, server"
    assert algorithms["erm"]["composable"] == "no"
    engines = json.loads(farfield("list", "engines", "--json").out)
    assert [engine["name"] for engine in engines] == ["auto", "local", "batched", "batched-func", "flower"]
    assert engines[0]["available"] is True
    tasks = {t["name"]: t for t in json.loads(farfield("list", "tasks", "--json").out)}
    assert tasks["rotated-digits"]["domains"] == ["0", "15", "30", "45", "60", "75"]
    assert tasks["rotated-digits"]["classes"] == 10
    assert tasks["rotated-digits"]["available"] is True
    card = farfield("show", "scaffold").out
    assert "control_change" in card
    assert "8970" in card
    assert "raw data leaves every client" in farfield("show", "erm").out
    composed = farfield("show", "fedprox+fedadam").out
    assert "mu" in composed
    assert "0.03" in composed


def test_train_then_predict_labels_digits_it_has_not_seen_as_raw_pixels(farfield: Command) -> None:
    assert farfield("train", "rotated-digits", "--out", "model", "--rounds", "15").code == 0
    images, labels = load_digits(return_X_y=True)
    np.save("digits.npy", (images[:300] / 16).astype("float32"))
    ran = farfield("predict", "model", "digits.npy")
    assert ran.code == 0
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert len(rows) == 300
    right = sum(int(row["label"]) == label for row, label in zip(rows, labels, strict=False))
    assert right > 180
    assert sum(float(v) for k, v in rows[0].items() if k.startswith("p(")) == pytest.approx(1, abs=1e-5)
    card = Path("model/README.md").read_text()
    assert "by source-validation |" in card
    assert "farfield bench rotated-digits" in card
    np.savetxt("digits.csv", images[:5] / 16, delimiter=",", header="a,b", comments="")
    assert farfield("predict", "model", "digits.csv", "--to", "labels.csv").code == 0
    written = list(csv.DictReader(io.StringIO(Path("labels.csv").read_text())))
    assert [r["label"] for r in written] == [r["label"] for r in rows[:5]]


@pytest.mark.slow
def test_train_resumed_after_a_kill_keeps_the_same_model(farfield: Command) -> None:
    whole = ["train", "rotated-digits", "-a", "scaffold", "--rounds", "8", "--checkpoint-every", "2"]
    assert farfield(*whole, "--out", "whole").code == 0
    assert farfield(*whole, "--out", "parts").code == 0
    run = Path("parts/run")
    (run / "result.json").unlink()
    (run / "checkpoint-000008.safetensors").unlink()
    Path("parts/README.md").unlink()
    assert farfield(*whole, "--out", "parts", "--resume").code == 0
    assert Path("parts/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert "already" in farfield(*whole, "--out", "whole").err


def test_predict_names_what_is_wrong_with_the_data(farfield: Command) -> None:
    assert farfield("train", "rect-4", "--out", "model", "--rounds", "2").code == 0
    np.save("wrong.npy", np.zeros((3, 5), dtype="float32"))
    Path("words.csv").write_text("a,b\nc,d\n")
    Path("notes.txt").write_text("hello")
    np.savez("other.npz", images=np.zeros((3, 2)))
    for file, phrase in {
        "wrong.npy": "(5,)",
        "words.csv": "cannot be read as numbers",
        "notes.txt": "neither",
        "other.npz": "no array 'x'",
        "absent.npy": "there is no file",
    }.items():
        ran = farfield("predict", "model", file)
        assert ran.code == 2, file
        assert phrase in ran.err


def test_report_is_written_again_and_says_how_often_the_target_was_opened(farfield: Command) -> None:
    farfield("bench", "rect-4", "-a", "fedavg", "--seeds", "1", "--rounds", "2", "--out", "b", "--quiet")
    assert farfield("report", "b", "--to", "again.html").code == 0
    looks = Path("b/looks.jsonl").read_text().splitlines()
    assert [json.loads(line)["purpose"] for line in looks] == ["bench", "report"]
    assert Path("again.html").exists()


def test_a_method_of_ones_own_runs_from_a_file(farfield: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from farfield.algorithms import FedAvg, register\n\n\n@register\nclass Mine(FedAvg):\n"
        '    """FedAvg at half the step."""\n\n    name = "fedmine-for-a-test"\n\n'
        "    def combine(self, updates, weights):\n        return super().combine(updates, weights) / 2\n"
    )
    try:
        ran = farfield(
            "bench",
            "rect-4",
            "--use",
            "mine.py",
            "-a",
            "fedavg,fedmine-for-a-test",
            "--seeds",
            "1",
            "--rounds",
            "2",
            "--out",
            "b",
            "--json",
            "rows.json",
            "--quiet",
        )
    finally:
        from farfield.algorithms import registry

        registry._METHODS.pop("fedmine-for-a-test", None)
    assert ran.code == 0
    rows = json.loads(Path("rows.json").read_text())
    assert len({r["model_sha256"] for r in rows}) == 8


def test_train_keeps_the_round_that_select_names(farfield: Command) -> None:
    ran = farfield("train", "linear-sem", "--rounds", "3", "--select", "last", "--out", "model")
    assert ran.code == 0
    assert "| round kept | 3 of 3, by last |" in Path("model/README.md").read_text()
    assert "--select last" in ran.out
    assert (
        "unknown selection rule 'lst'; did you mean 'last'?"
        in farfield("train", "linear-sem", "--select", "lst", "--out", "other").err
    )
