"""Target rows: not to be read in passing, and every look counted."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

from farfield.records import RunFolder
from farfield.records.sealed import LOOKS, SEALED, count_look, looks, open_sealed, open_sites

METRICS = {"accuracy": 0.8125, "loss": 0.1 + 0.2, "macro_f1": 1 / 3, "auroc": None, "tiny": 5e-324}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create({})
    for number in (5, 10):
        folder.add_target(number, {**METRICS, "round_twice": 2.0 * number})
    return folder


def test_sealed_rows_come_back_exactly(run: RunFolder) -> None:
    assert open_sealed(run.path) == [(5, {**METRICS, "round_twice": 10.0}), (10, {**METRICS, "round_twice": 20.0})]


def test_neither_names_nor_numbers_can_be_read_in_passing(run: RunFolder) -> None:
    text = (run.path / SEALED).read_text()
    for name, value in METRICS.items():
        assert name not in text
        assert json.dumps(value) not in text
    assert [set(json.loads(line)) for line in text.splitlines()] == [{"round", "sealed", "check"}] * 2
    others = [p.read_text() for p in run.path.iterdir() if p.name != SEALED]
    assert not any("accuracy" in text or "0.8125" in text for text in others)


def test_a_cut_sealed_row_is_passed_over(run: RunFolder) -> None:
    path = run.path / SEALED
    path.write_bytes(path.read_bytes()[:-5])
    assert [number for number, _ in open_sealed(run.path)] == [5]


def test_a_run_without_target_rows_has_none_to_open(tmp_path: Path) -> None:
    assert open_sealed(tmp_path) == []


def test_every_look_is_counted_with_its_purpose(tmp_path: Path) -> None:
    assert looks(tmp_path) == 0
    assert [count_look(tmp_path, purpose) for purpose in ("report", "report", "table")] == [1, 2, 3]
    assert looks(tmp_path) == 3
    rows = [json.loads(line) for line in (tmp_path / LOOKS).read_text().splitlines()]
    assert [row["purpose"] for row in rows] == ["report", "report", "table"]
    assert all(row["time"].endswith("Z") for row in rows)


def test_rewinding_a_run_forgets_no_look(run: RunFolder) -> None:
    count_look(run.path, "report")
    run.rewind(0)
    assert open_sealed(run.path) == []
    assert looks(run.path) == 1


def test_the_figures_of_a_site_are_sealed_apart_and_opened_by_round(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for number in (1, 2):
        run.add_target(number, {"accuracy": 0.5, "site": {"rows": number, "auroc": {"value": None}}})
    run.add_target(3, {"accuracy": 0.5, "site": None})
    assert open_sealed(run.path) == [(1, {"accuracy": 0.5}), (2, {"accuracy": 0.5}), (3, {"accuracy": 0.5})]
    assert open_sites(run.path, {2, 3}) == {2: {"rows": 2, "auroc": {"value": None}}}
    assert "auroc" not in (run.path / SEALED).read_text()


def test_rows_that_an_older_version_sealed_are_opened(tmp_path: Path) -> None:
    payload = base64.b85encode(zlib.compress(b'{"accuracy": 0.25}')).decode()
    (tmp_path / SEALED).write_text(json.dumps({"round": 3, "sealed": payload}) + "\n")
    assert open_sealed(tmp_path) == [(3, {"accuracy": 0.25})]
