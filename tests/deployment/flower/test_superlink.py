"""What a SuperLink of ours keeps in its file, and how often it tidies up there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore.corestate.sql_corestate import SqlCoreState
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink import config_loader

from farfield.deployment.flower import superlink


def test_nodes_and_runs_are_in_the_file_and_messages_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_loader, "ObjectStoreFactory", ObjectStoreFactory)
    superlink.keep_content_in_memory()
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        config_loader,
        "LinkStateFactory",
        lambda database, manager, objects: given.update(database=database, objects=objects),
    )
    make = next(value for name, value in vars(config_loader).items() if "factories" in name and callable(value))
    objects, _ = make(str(tmp_path / "superlink.db"), None)
    assert given == {"database": str(tmp_path / "superlink.db"), "objects": objects}
    assert isinstance(objects.store(), InMemoryObjectStore)


def test_silent_tasks_are_ended_at_once_and_then_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tidied: list[str] = []
    monkeypatch.setattr(SqlCoreState, "_cleanup_expired_task_tokens", lambda self: tidied.append(self.name))
    clock = [50.0]
    monkeypatch.setattr(superlink, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    superlink.search_expired_less_often(1.0)
    one, other = SimpleNamespace(name="one"), SimpleNamespace(name="other")
    tidy_up: Any = SqlCoreState._cleanup_expired_task_tokens
    for after in (0.0, 0.4, 0.4, 0.4):
        clock[0] += after
        tidy_up(one)
    tidy_up(other)
    assert tidied == ["one", "one", "other"]
