"""A bench on Flower's own simulation, Ray and all: the same models to the bit, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.runs.engines import ENGINES
from tests.toy import task

if not ENGINES["flower"].available:
    pytest.skip("needs farfield[sim]", allow_module_level=True)

SHOWN = ["fedavg", "fediir", "fediir+fedomg", "scaffold", "fedilc-inter-geo", "fedcir", "fedloe-irm"]
SAME = ("rounds", "clients", "local_steps", "samples", "bytes_up", "bytes_down", "selection", "model_sha256")


def outcome(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["algorithm"]: {name: row[name] for name in SAME} for row in rows}


@pytest.mark.long
def test_a_bench_on_flowers_simulation_ends_in_the_same_bits(tmp_path: Path) -> None:
    options: dict[str, Any] = {"held_out": ["c"], "seeds": 1, "rounds": 3, "equal_steps": False}
    local = ff.bench(task(3), SHOWN, **options, out=tmp_path / "local")
    flower = ff.bench(task(3), SHOWN, **options, engine="flower", out=tmp_path / "flower")
    assert flower.failures == []
    assert outcome(flower.rows) == outcome(local.rows)
    assert len(outcome(flower.rows)) == len(SHOWN)
    assert {row["engine"] for row in flower.rows} == {"flower"}
    assert {row["events"] for row in flower.rows} == {0}
    ray = sys.modules["ray"]
    assert not ray.is_initialized()  # type: ignore[attr-defined]
