"""`farfield report A B`: a page, a table and JSON of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import farfield as ff
from tests.cli.conftest import Ran
from tests.toy import task


@pytest.mark.slow
def test_two_benches_make_one_page_and_leave_their_own_alone(farfield: Callable[..., Ran], tmp_path: Path) -> None:
    for name in ("fedprox", "fedsgd"):
        ff.bench(task(3), ["fedavg", name], seeds=1, rounds=2, out=tmp_path / name)
    ran = farfield("report", "fedprox", "fedsgd", "--json", "rows.json")
    assert ran.code == 0
    assert "the runs of fedavg are the same to the bit" in ran.err
    assert "fedsgd" in ran.out
    assert "report: comparison.html" in ran.out
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["algorithm"], row["bench"]) for row in rows[::3]] == [
        ("fedavg", "fedprox"),
        ("fedprox", "fedprox"),
        ("fedsgd", "fedsgd"),
    ]
    page = (tmp_path / "comparison.html").read_text()
    assert "farfield report fedprox fedsgd" in page
    assert not (tmp_path / "fedprox/report.html").exists()


def test_a_folder_without_a_bench_is_one_sentence(farfield: Callable[..., Ran], tmp_path: Path) -> None:
    ff.bench(task(3), ["fedavg"], seeds=1, rounds=1, held_out=["a"], out=tmp_path / "b")
    ran = farfield("report", "b", "nothing")
    assert ran.code == 2
    assert "there is no bench in 'nothing'" in ran.err
