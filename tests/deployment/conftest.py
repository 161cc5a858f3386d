"""A federation of three sites."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from farfield.deployment.federation_file import FederationFile, read_federation
from tests.clock_of_sleeps import clock_of_sleeps

__all__ = ["clock_of_sleeps"]


@pytest.fixture
def federation(tmp_path: Path) -> FederationFile:
    path = tmp_path / "federation.toml"
    content = {"name": "toy", "server": "127.0.0.1:9443", "algorithm": "scaffold", "rounds": 2, "sites": 3}
    path.write_text(tomli_w.dumps(content))
    return read_federation(path)
