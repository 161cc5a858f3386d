"""What the sources' validation rows say, beside the held-out figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import farfield as ff
from farfield.report.collect import collect
from farfield.report.source_figures import in_label_units, source_figures
from farfield.report.tables import result_table
from tests.report.sweeps import sweep
from tests.toy import task

VALIDATION = {
    "big": {"accuracy": 0.9, "loss": 0.2, "auroc": 0.8, "n": 30.0},
    "small": {"accuracy": 0.5, "loss": 1.0, "n": 10.0},
}


def test_domains_count_the_same_in_one_and_rows_in_the_other() -> None:
    figures = source_figures(VALIDATION)
    assert figures["validation"] == pytest.approx({"accuracy": 0.7, "loss": 0.6, "auroc": 0.8})
    assert figures["participating"] == pytest.approx({"accuracy": (27 + 5) / 40, "loss": (6 + 10) / 40, "n": 40.0})


def test_a_loss_that_is_not_finite_leaves_no_mean() -> None:
    figures = source_figures({**VALIDATION, "bad": {"accuracy": 0.3, "loss": None, "n": 5.0}})
    assert figures["validation"]["loss"] is None
    assert figures["participating"]["loss"] is None
    assert figures["validation"]["accuracy"] == pytest.approx(1.7 / 3)


def test_squared_errors_are_told_in_the_units_of_the_labels() -> None:
    told = in_label_units({"a": {"loss": 0.25, "n": 4.0}, "b": {"loss": 0.04, "n": 12.0}}, 10.0)
    assert told["a"] == pytest.approx({"loss": 25.0, "rmse": 5.0, "n": 4.0})
    figures = source_figures(told)
    assert figures["validation"] == pytest.approx({"loss": 14.5, "rmse": 3.5})
    assert figures["participating"] == pytest.approx({"loss": 9.25, "rmse": 9.25**0.5, "n": 16.0})


def test_json_and_table_have_the_figures_of_the_chosen_round(tmp_path: Path) -> None:
    result = ff.bench(task(3), ["fedavg"], seeds=2, rounds=3, out=tmp_path / "b", validation=0.3)
    expected = []
    for row in result.rows:
        chosen = row["selection"]["last"]
        rows = (tmp_path / "b/runs/fedavg" / row["held_out"] / f"seed-{row['seed']}/rounds.jsonl").read_text()
        of = json.loads(rows.splitlines()[chosen["round"] - 1])["validation"]
        by_hand = sum(d["accuracy"] * d["n"] for d in of.values()) / sum(d["n"] for d in of.values())
        assert chosen["participating"]["accuracy"] == pytest.approx(by_hand)
        assert chosen["validation"]["accuracy"] == pytest.approx(sum(d["accuracy"] for d in of.values()) / len(of))
        expected.append(chosen["validation"]["accuracy"])
    table = result.results("last", "accuracy")
    assert table.to_dicts()[0]["validation"] == pytest.approx(sum(expected) / len(expected))
    assert "source validation" in table.markdown()
    assert "participating" in table.markdown()
    json.dumps(collect(tmp_path / "b", "test").rows, allow_nan=False)


def test_a_domain_without_the_metric_is_left_out_of_these_figures_too() -> None:
    """AUROC needs two classes, which a small held-out domain may not have."""
    of = sweep({"fedavg": {"x": [0.5], "y": [0.6]}})
    for row, value in zip(of.rows, (0.9, 0.1), strict=True):
        row["selection"]["last"] = {**row["selection"]["last"], "validation": {"auroc": value}}
    del of.rows[1]["selection"]["last"]["auroc"]
    line = result_table(of, "last", "auroc").to_dicts()[0]
    assert (line["mean"], line["validation"]) == (0.75, 0.9)
