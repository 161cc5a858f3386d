"""What a bench prints at its end, however that comes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farfield.cli import bench as command
from farfield.cli.bench_output import failure_lines
from tests.cli.conftest import Ran
from tests.report.sweeps import sweep

BENCH = ("bench", "rotated-digits", "-a", "fedavg,fedsgd", "--held-out", "0,75", "--seeds", "1", "--rounds", "2")


@pytest.mark.slow
def test_an_interrupted_bench_prints_what_it_has(
    farfield: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = command.run_bench

    def interrupted(*arguments: Any, **options: Any) -> None:
        whole(*arguments, **options)
        shutil.rmtree(tmp_path / "b/runs/fedsgd/75")
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_bench", interrupted)
    ran = farfield(*BENCH, "--equal-rounds", "--out", "b")
    sentence = "3 of 4 runs are done; 1 of 2 held-out domains are complete: read this as provisional."
    assert ran.code == 130
    assert sentence in ran.out
    assert "fedavg" in ran.out
    assert "--resume" in ran.err
    assert (tmp_path / "b/report.html").exists()
    again = farfield("report", "b")
    assert (again.code, sentence in again.out) == (0, True)


def test_runs_that_fail_alike_are_one_line() -> None:
    failed = [{"algorithm": "fedprox", "held_out": d, "fold": "a+b", "seed": 0, "error": "E: x"} for d in "ab"]
    many = [{"algorithm": "fedavg", "held_out": str(n), "seed": 1, "error": "E: y"} for n in range(4)]
    of = sweep({"fedavg": {"a": [0.5]}}, failures=[*failed, *many])
    assert failure_lines(of) == ["fedprox, a+b held out, seed 0: E: x", "fedavg, 4 runs: E: y"]
