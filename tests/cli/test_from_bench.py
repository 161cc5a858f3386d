"""`train --from` and `predict --threshold`, as a user types them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def rare(tmp_path: Path) -> Path:
    """A table with 10 % of 'yes', which one column announces."""
    draw = np.random.default_rng(0)
    lines = ["sick,age,dose,site"]
    for site in "nsew":
        for number in range(60):
            sick = number % 10 == 0
            lines.append(f"{'yes' if sick else 'no'},{draw.normal(3.0 * sick):.3f},{draw.normal():.3f},{site}")
    path = tmp_path / "rare.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_threshold_moves_the_labels_and_not_the_probabilities(rare: Path, farfield: Callable[..., Any]) -> None:
    table = ["--data", str(rare), "--label", "sick", "--domain", "site"]
    assert farfield("train", *table, "--rounds", "3", "--out", "m").code == 0
    rows: dict[str, list[list[str]]] = {}
    for threshold in (None, "0.01", "0.99"):
        option = [] if threshold is None else ["--threshold", threshold]
        ran = farfield("predict", "m", str(rare), *option)
        rows[str(threshold)] = [line.split(",") for line in ran.out.split()[1:]]
    probabilities = [float(row[3]) for row in rows["None"]]
    assert [row[2:] for row in rows["0.01"]] == [row[2:] for row in rows["None"]]
    for threshold in (0.01, 0.99):
        expected = ["yes" if p >= threshold else "no" for p in probabilities]
        assert [row[1] for row in rows[str(threshold)]] == expected
    assert {row[1] for row in rows["0.01"]} == {"yes"}
    for wrong in ("0", "1.5"):
        ran = farfield("predict", "m", str(rare), "--threshold", wrong)
        assert ran.code == 2
        assert f"--threshold is a probability between 0 and 1, not {wrong}" in ran.err


def test_the_command_trains_from_a_bench_of_your_own_table(rare: Path, farfield: Callable[..., Any]) -> None:
    table = ["--data", str(rare), "--label", "sick", "--domain", "site"]
    ran = farfield("bench", *table, "-a", "fedavg", "--seeds", "1", "--rounds", "2", "--out", "b", "--quiet")
    assert ran.code == 0, ran.err
    typed = f"farfield train --from b --data {rare} --label sick --domain site --out model"
    assert f"to train what it recommends: {typed}" in " ".join(ran.out.split())
    ran = farfield("train", "--from", "b", "--out", "m")
    assert (ran.code, "give it again with --data" in ran.err) == (2, True)
    ran = farfield("train", "--from", "b", *table, "--out", "m")
    assert ran.code == 0, ran.err
    assert "method: fedavg (the bench recommends it)" in ran.err
    assert "AUROC" in Path("m/README.md").read_text()
    ran = farfield("train", "--from", "b", "-a", "fedavg", *table, "--out", "m2")
    assert (ran.code, "name it with --method" in ran.err) == (2, True)
    ran = farfield("train", "--method", "fedavg", *table, "--out", "m2")
    assert (ran.code, "--from" in ran.err) == (2, True)
