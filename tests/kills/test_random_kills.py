"""Benches that are killed at random moments, again and again, end in the same bits, and no recorded row is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kills.random_kills import kill_at_random

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

SHORT = bool(os.environ.get("FARFIELD_SHORT"))


@pytest.mark.parametrize(("workers", "kills"), [(1, 10 if SHORT else 100), (2, 10 if SHORT else 100)])
def test_a_bench_killed_at_random_moments_ends_in_the_same_bits(tmp_path: Path, workers: int, kills: int) -> None:
    done = kill_at_random(tmp_path, kills, workers, seed=workers)
    print(
        f"{done.kills} kills ({done.of_workers} of workers), {done.whole_benches} benches, {done.rows_seen} rows seen"
    )
    assert done.kills >= kills
    assert done.rows_seen > 0
    assert not done.problems, done.problems[:5]
