"""A bench with secure sums: validation over all clients together, misfits left out with the reason, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.algorithms import build
from farfield.federation.federation import Replies, Reply
from farfield.records import RunFolder
from farfield.runs.rounds import Rounds
from farfield.runs.settings import PlanError
from farfield.runs.validation_by_domain import pooled_validation, validation_by_domain
from tests.toy import domain, domains, federation, initial, lose, task

SECURE = {"secure_sums": True, "lr": 0.1, "batch_size": 8}


def bench(out: Path, algorithms: list[str], **given: Any) -> Any:
    options = {"held_out": ["d"], "seeds": 1, "rounds": 4, "settings": SECURE, "references": False, **given}
    return ff.bench(task(4), algorithms, out=out, **options)


def run_of(out: Path, name: str = "fedavg") -> Path:
    return out / "runs" / name / "d" / "seed-0"


def test_a_round_is_chosen_by_the_rows_of_all_clients_together(tmp_path: Path) -> None:
    (row,) = bench(tmp_path / "b", ["fedavg"]).rows
    rounds = RunFolder(run_of(tmp_path / "b")).rounds()
    assert all(list(each["validation"]) == ["all 3 clients together"] for each in rounds)
    # Domains a, b and c have 40, 48 and 56 rows, of which 4, 4 and 5 are kept for validation.
    figures = [each["validation"]["all 3 clients together"] for each in rounds]
    assert {each["n"] for each in figures} == {13.0}
    best = max(range(4), key=lambda n: (figures[n]["accuracy"], -figures[n]["loss"], n)) + 1
    assert row["selection"]["source-validation"]["round"] == best


def test_the_figures_are_those_of_single_replies_pooled() -> None:
    """From a bench that sees each client's, whose figures are put together here by hand."""
    plain, secure = build("fedavg"), build("fedavg", {"secure_sums": True})
    with federation(plain, domains(3)) as fed:
        single = validation_by_domain(fed.map_over(range(3), plain.evaluate, initial().state()), "classification")
    with federation(secure, domains(3)) as fed:
        replies = fed.map_over(range(3), secure.evaluate, initial().state())
    ((name, pooled),) = pooled_validation(replies, "classification", 3).items()
    assert name == "all 3 clients together"
    rows = {domain: figures["n"] for domain, figures in single.items()}
    assert pooled["n"] == sum(rows.values())
    for figure in ("loss", "accuracy", "auroc"):
        by_hand = sum(single[domain][figure] * n for domain, n in rows.items()) / sum(rows.values())
        assert pooled[figure] == pytest.approx(by_hand, abs=1e-7)


def test_a_round_that_misses_a_client_has_another_name_and_cannot_win() -> None:
    secure = build("fedavg", {"secure_sums": True})
    with federation(secure, domains(4)) as fed:
        lose(fed, {"evaluate": {1}})
        replies = fed.map_over(range(4), secure.evaluate, initial().state())
    assert list(pooled_validation(replies, "classification", 4)) == ["3 of 4 clients together"]


def test_clients_without_a_class_or_without_validation_rows_count_with_what_they_have() -> None:
    secure = build("fedavg", {"secure_sums": True})
    chosen = [*domains(3), domain("tiny", rows=4)]
    with federation(secure, chosen) as fed:
        replies = fed.map_over(range(4), secure.evaluate, initial().state())
    (figures,) = pooled_validation(replies, "classification", 4).values()
    assert figures["n"] == float(replies.sum("class_rows").sum()) == float(replies.sum("rows"))
    assert 0.0 <= figures["balanced_accuracy"] <= 1.0


def test_nothing_is_measured_where_no_client_has_validation_rows() -> None:
    none = Replies((Reply(0, "a", 1, {"rows": 0}), Reply(1, "b", 1, {"rows": 0})))
    assert pooled_validation(none, "classification", 2) == {}


def test_what_needs_single_updates_is_left_out_of_a_comparison_and_refused_alone(tmp_path: Path) -> None:
    found = bench(tmp_path / "b", ["fedprox", "fedomg"])
    assert "fedomg" not in [row["algorithm"] for row in found.rows]
    assert "fedomg matches the clients' updates with one another" in str(found)
    with pytest.raises(PlanError, match=r"fedomg matches the clients' updates .*; omit secure_sums"):
        bench(tmp_path / "c", ["fedomg"])
    with pytest.raises(PlanError, match="needs 3 to 2047 clients in a cohort, not 2"):
        bench(tmp_path / "d", ["fedavg"], cohort=2)


def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bench(tmp_path / "whole", ["scaffold"]).rows[0]["model_sha256"]
    step = Rounds.step

    def cut(rounds: Rounds) -> None:
        if rounds.state.round == 2:
            raise KeyboardInterrupt
        step(rounds)

    with monkeypatch.context() as patch:
        patch.setattr(Rounds, "step", cut)
        with pytest.raises(KeyboardInterrupt):
            bench(tmp_path / "cut", ["scaffold"], checkpoint_every=1, parallel=1)
    assert len(RunFolder(run_of(tmp_path / "cut", "scaffold")).rounds()) == 2
    resumed = bench(tmp_path / "cut", ["scaffold"], resume=True, checkpoint_every=1)
    assert resumed.rows[0]["model_sha256"] == whole


def test_a_run_from_before_secure_sums_is_still_the_same_run(tmp_path: Path) -> None:
    settings = {"lr": 0.1, "batch_size": 8}
    bench(tmp_path / "b", ["fedavg"], settings=settings)
    config = (run_of(tmp_path / "b") / "config.toml").read_text()
    assert "secure" not in config
    json.dumps(bench(tmp_path / "b", ["fedavg"], settings=settings, resume=True).rows)
