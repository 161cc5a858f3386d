from __future__ import annotations

from pathlib import Path

import pytest

from farfield.tasks.data_folder.store import VARIABLE
from farfield.tasks.registry import load


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; tasks that were loaded from another are forgotten."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    load.cache_clear()
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FARFIELD_CACHE", str(folder))
    return folder
