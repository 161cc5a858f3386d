"""`farfield bench --dry-run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran


def test_a_dry_run_prints_plan_and_estimate_and_stops(farfield: Callable[..., Ran], tmp_path: Path) -> None:
    ran = farfield("bench", "rotated-digits", "-a", "fedavg,fedprox", "--folds", "3", "--seeds", "2", "--dry-run")
    assert ran.code == 0
    assert "held out: 6 domains in 3 folds" in ran.out
    assert "runs: 12" in ran.out
    assert "12 runs to go" in ran.out
    assert "2 rounds of 2 methods were timed" in ran.out
    assert "nothing was run (--dry-run)" in ran.out
    assert not list(tmp_path.iterdir())


def test_a_dry_run_names_the_engine_and_why(farfield: Callable[..., Ran]) -> None:
    ran = farfield("bench", "rotated-digits", "-a", "fedavg", "--seeds", "1", "--rounds", "2", "--dry-run")
    assert "engine: batched (the model is small, and several clients are trained at once)" in ran.out
