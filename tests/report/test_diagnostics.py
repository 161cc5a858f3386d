"""Diagnostics reach the report as means over thirds of the rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from farfield.report.collect import Curve, Sweep
from farfield.report.diagnostics import diagnostics_table
from farfield.runs.bench import bench
from tests.toy import task


def sweep(values: list[list[float | None]]) -> Sweep:
    curves = [
        Curve("fediir", "a", seed, [{"round": i + 1, "diagnostics": {"p": v}} for i, v in enumerate(run)], [])
        for seed, run in enumerate(values)
    ]
    names = ["fedavg", "fediir"]
    plan = {"algorithms": names, "variants": [{"label": name, "method": name, "settings": {}} for name in names]}
    return Sweep(Path(), plan, [], curves, [], [], 0, 1)


def test_each_third_is_the_mean_over_runs_and_rounds() -> None:
    table = diagnostics_table(sweep([[1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, None]]))
    assert table is not None
    (row,) = table.to_dicts()
    assert (row["algorithm"], row["diagnostic"]) == ("fediir", "p")
    assert row["first third"] == pytest.approx(2.5)
    assert row["second third"] == pytest.approx(4.5)
    assert row["last third"] == pytest.approx(6.0)


def test_without_diagnostics_there_is_no_table() -> None:
    assert diagnostics_table(sweep([[]])) is None


def test_what_the_papers_plot_is_on_the_page_of_a_real_bench(tmp_path: Path) -> None:
    methods = ["fediir", "fedomg", "fedilc-inter-geo", "fedcir", "fedloe-irm"]
    result = bench(task(3), methods, seeds=1, rounds=4, held_out=["c"], out=tmp_path / "b")
    table = diagnostics_table(result.sweep)
    assert table is not None
    told = {(r["algorithm"], r["diagnostic"]) for r in table.to_dicts()}
    assert told >= {
        ("fediir", "alignment_penalty"),
        ("fedomg", "worst_inner_product"),
        ("fedomg", "worst_inner_product"),
        ("fedilc-inter-geo", "geometric_to_arithmetic"),
        ("fedilc-inter-geo", "fishr_penalty"),
        ("fedcir", "generator_loss"),
        ("fedloe-irm", "phi_0"),
    }
    page = result.report().read_text()
    assert "alignment_penalty" in page
    assert "geometric_to_arithmetic" in page
