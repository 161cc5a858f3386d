"""What a private run has released is on disk, is never taken back, and is told with its result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farfield.algorithms import build
from farfield.federation.federation import QuorumMissed
from farfield.privacy.accountant import epsilon_of
from farfield.privacy.release import Release, releases_of
from farfield.records import RunFolder
from farfield.report.collect import collect
from farfield.runs.plan import Job, make_plan
from farfield.runs.privacy_ledger import PRIVACY, PrivacyLedger, open_ledger
from farfield.runs.settings import PlanError
from farfield.runs.single_run import run_job
from farfield.runs.tuning.request import Tuning
from tests.privacy.references import epsilon_from, gaussian_delta
from tests.toy import task

pytest.importorskip("dp_accounting")

RECORD = {"privacy": "record", "clip": 1.0, "noise": 1.5, "batch_size": 8}
CLIENT = {"privacy": "client", "clip": 1.0, "noise": 3.0, "weighting": "uniform"}


def run(folder: Path, algorithm: str = "fedavg", rounds: int = 4, **settings: Any) -> dict[str, Any]:
    toy = task()
    plan = make_plan(toy, algorithms=[algorithm], held_out=["c"], seeds=1, rounds=rounds, settings=settings or RECORD)
    return run_job(plan, toy, Job(algorithm, "c", 0), folder, checkpoint_every=2)


@pytest.mark.slow
def test_a_result_has_the_largest_epsilon_over_its_clients(tmp_path: Path) -> None:
    privacy = run(tmp_path)["privacy"]
    algorithm = build("fedavg", RECORD)
    rows = [round(0.9 * n) for n in (40, 48)]
    each = [epsilon_of(releases_of(algorithm, 4, n), 1e-5) for n in rows]
    assert privacy["epsilon"] == pytest.approx(max(each))
    assert (privacy["level"], privacy["clients"], privacy["delta"]) == ("record", 2, 1e-5)
    assert privacy["releases"]["0"] == [{"noise": 1.5, "rate": 8 / rows[0], "steps": -(-rows[0] // 8), "times": 4}]
    assert RunFolder(tmp_path).result["privacy"] == privacy  # type: ignore[index]


@pytest.mark.parametrize(("name", "uploads"), [("fedavg", 1), ("fediir", 2)])
def test_client_level_epsilon_is_that_of_the_analytic_gaussian(tmp_path: Path, name: str, uploads: int) -> None:
    found = run(tmp_path, name, **CLIENT)["privacy"]["epsilon"]
    exact = epsilon_from(lambda e: gaussian_delta(e, 3.0, 4 * uploads), 1e-5)
    assert exact <= found <= exact + 1e-3


def test_a_run_without_privacy_has_no_ledger_and_tells_nothing(tmp_path: Path) -> None:
    assert "privacy" not in run(tmp_path, clip=1.0)
    assert not (tmp_path / PRIVACY).exists()


def test_a_resumed_run_tells_the_same_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    folder = tmp_path / "killed"
    run(folder)
    # As after a kill in round 4: the result and the newest checkpoint are not there, the ledger is.
    (folder / "result.json").unlink()
    (folder / "checkpoint-000004.safetensors").unlink()
    again = run(folder)
    assert again["model_sha256"] == whole["model_sha256"]
    assert again["privacy"] == whole["privacy"], "the same seed made the same noise, so it was one release"


def test_with_fresh_noise_a_round_that_is_made_again_counts_again(tmp_path: Path) -> None:
    algorithm = build("fedavg", RECORD)
    for start in range(2):
        ledger = PrivacyLedger(tmp_path, algorithm, secure_noise=True)
        for number in (1, 2) if start == 0 else (2, 3):
            ledger.asked(number, "train", [0, 1])
            ledger.learned({0: 40, 1: 32})
    assert ledger.releases() == {0: {Release(1.5, 0.2, 5): 4}, 1: {Release(1.5, 0.25, 4): 4}}


def test_a_round_that_failed_counts_and_a_phase_that_sends_nothing_does_not(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path, build("fedavg", RECORD), secure_noise=False)
    ledger.learned({0: 40})
    ledger.asked(1, "train", [0])
    ledger.asked(1, "evaluate", [0])
    assert ledger.releases() == {0: {Release(1.5, 0.2, 5): 1}}
    ledger.asked(1, "train", [0])
    assert ledger.releases() == {0: {Release(1.5, 0.2, 5): 2}}, "asked twice in a round: two releases"
    assert open_ledger(tmp_path, build("fedavg"), secure_noise=False) is None


def test_clients_are_written_down_before_they_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farfield.federation.engines.local import LocalFederation

    seen: list[int] = []

    def broken(self: Any, phase: str, *rest: Any) -> Any:
        rows = [json.loads(line) for line in (tmp_path / PRIVACY).read_text().splitlines()]
        seen.append(sum("clients" in row for row in rows))
        raise QuorumMissed("nobody came back")
        yield

    monkeypatch.setattr(LocalFederation, "_outcomes", broken)
    with pytest.raises(Exception, match="nobody came back"):
        run(tmp_path)
    assert seen == [1, 2, 3], "three rounds were tried, each was counted first"


@pytest.mark.slow
def test_nothing_of_validation_is_recorded_and_the_last_round_is_the_result(tmp_path: Path) -> None:
    import farfield as ff

    variants = ["fedavg", ff.method("fedavg", **RECORD), ff.method("fedavg", **CLIENT)]
    result = ff.bench(task(), algorithms=variants, seeds=1, rounds=4, out=tmp_path, evaluate_every=1)
    sweep = collect(tmp_path, "test")
    assert sweep.failures == []
    for row in sweep.rows:
        private = row["settings"]["privacy"] != "none"
        assert ("privacy" in row) is private
        if private:
            assert row["selection"]["source-validation"]["round"] == row["selection"]["last"]["round"] == 4
    for curve in sweep.curves:
        if "privacy" in curve.algorithm:
            assert all(r["loss"] is None and not r["validation"] for r in curve.rounds)
    notes = " ".join(result.results().notes())
    assert notes.count("ε = ") == 2
    assert "not covered: the number of rows" in notes
    assert "fedavg has none." in " ".join(result.answer().method)
    page = result.report().read_text()
    assert "at δ = 1e-05 for each training row" in page
    assert "at δ = 1e-05 for each client" in page


@pytest.mark.slow
def test_a_card_tells_epsilon_and_what_it_leaves_out(tmp_path: Path) -> None:
    import farfield as ff

    out = ff.train(task(), "fedavg", out=tmp_path / "m", rounds=3, settings=RECORD)
    card = (Path(out) / "README.md").read_text()
    assert "| differential privacy | ε = " in card
    assert "withheld: no validation figure leaves a client" in card
    assert "nan" not in card
    assert "Of this ε not covered: the number of rows" in card
    plain = (Path(ff.train(task(), "fedavg", out=tmp_path / "p", rounds=3)) / "README.md").read_text()
    assert "rivacy" not in plain.split("## Settings")[0]


def test_tuning_would_look_at_what_is_withheld() -> None:
    with pytest.raises(PlanError, match="tuning looks at exact validation figures"):
        make_plan(task(), algorithms=["fedavg"], seeds=1, rounds=2, settings=RECORD, tuning=Tuning(trials=2))


def test_a_plan_warns_of_no_noise_and_of_a_large_delta() -> None:
    plan = make_plan(task(), algorithms=["fedavg"], seeds=1, rounds=2, settings={**RECORD, "noise": 0.0, "delta": 0.01})
    assert any("noise=0 is no privacy" in note for note in plan.notes)
    assert any("delta = 0.01 is not far below" in note for note in plan.notes)
