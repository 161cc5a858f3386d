"""W&B in its offline mode: the files it would send are read back with its own reader."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.trackers import WandB
from tests.toy import task
from tests.trackers.small_bench import StopAfter, recorded

pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for kind in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / kind))


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """The runs in offline folders."""
    return [whole_run(path) for path in folder.rglob("*.wandb")]


def whole_run(path: Path) -> dict[str, Any]:
    """Read a run's file when W&B's own process has written all of it: the last record is the run's exit."""
    until = time.monotonic() + 30
    while not (run := read_run(path)).get("exit"):
        assert time.monotonic() < until, f"{path} has no end"
        time.sleep(0.05)
    return run


def read_run(path: Path) -> dict[str, Any]:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(path))
    run: dict[str, Any] = {"history": []}
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run |= {"name": record.run.display_name, "id": record.run.run_id, "group": record.run.run_group}
            run["config"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            items = record.history.item
            run["history"].append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        elif kind == "exit":
            run["exit"] = True
    return run


def test_rounds_are_logged_by_run_and_resumed_under_the_same_id(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 3, "seeds": 1, "held_out": ["a"], "out": tmp_path / "b", "parallel": 1}
    with pytest.raises(KeyboardInterrupt):
        ff.bench(task(), ["fedavg"], callbacks=[WandB(), StopAfter(2)], **options)
    (first,) = runs_in(tmp_path / "b" / "trackers")
    assert [row["_step"] for row in first["history"]] == [1, 2]

    result = ff.bench(task(), ["fedavg"], callbacks=[WandB()], resume=True, **options)
    runs = runs_in(tmp_path / "b" / "trackers")
    (results,) = [run for run in runs if run["name"] == "held-out results"]
    (second,) = [run for run in runs if run["name"] == first["name"] and len(run["history"]) > 2]
    assert len(runs) == 3
    assert first["name"] == "fedavg/a/seed-0"
    assert (second["id"], second["group"]) == (first["id"], first["group"])
    assert second["config"]["held_out"] == "a"
    rows = recorded(tmp_path / "b", "fedavg", "a")
    assert [(row["_step"], row["loss"]) for row in second["history"]] == [(row["round"], row["loss"]) for row in rows]
    assert second["history"][0]["validation/b/loss"] == rows[0]["validation"]["b"]["loss"]
    assert not [name for run in (first, second) for row in run["history"] for name in row if "held_out" in name]

    assert results["group"] == first["group"]
    (table_file,) = (tmp_path / "b" / "trackers").rglob("*.table.json")
    table = json.loads(table_file.read_text())
    last = dict(zip(table["columns"], next(row for row in table["data"] if row[3] == "last"), strict=True))
    assert last["accuracy"] == result.rows[0]["selection"]["last"]["accuracy"]
