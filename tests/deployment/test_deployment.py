"""Real deployments on loopback: SuperLink, SuperNodes, TLS and keys. `make deployment` runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farfield.deployment.certs import make_authority, make_node_key, make_server_certificate
from tests.deployment.network import SITES, Deployment, arrays, as_task, deployment, trained_here

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

#: The methods whose final models must have the same bytes on every engine.
METHODS = ("fedavg", "fediir", "fediir+fedomg", "scaffold", "fedilc-inter-geo", "fedcir", "fedloe-irm")


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_deployment_gives_the_same_bytes_as_one_machine(tmp_path: Path, algorithm: str) -> None:
    with deployment(tmp_path / "net", algorithm=algorithm, rounds=3) as net:
        result = net.run()
    assert result["model_sha256"] == trained_here(tmp_path / "local", algorithm, 3)
    assert result["engine"] == "flower deployment"
    local = json.loads((tmp_path / "local" / "run" / "result.json").read_text())
    for count in ("bytes_up_by_phase", "bytes_down_by_phase", "local_steps", "samples"):
        assert result[count] == local[count], count
    assert not net.events()
    assert (net.out / "model.safetensors").exists()
