"""How a server starts its ServerApp: the token goes through a pipe, and the process is collected when it ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import TaskType

from farfield.deployment.flower import flower_commands
from farfield.deployment.flower.flower_commands import ServerAppExecutor

TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerAppExecutor:
    """An executor of a program that writes down how it was started."""
    (tmp_path / "program.py").write_text(
        "import json, sys\n"
        "heard = sys.stdin.read()\n"
        "command = open('/proc/self/cmdline').read() + open('/proc/self/environ').read()\n"
        "json.dump([sys.argv[1:], heard, command], open(sys.argv[1] + '.said', 'w'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(flower_commands, "SERVERAPP", "program")
    return ServerAppExecutor(tmp_path / "secret")


@pytest.mark.skipif(sys.platform != "linux", reason="reads a command line from /proc")
def test_the_token_is_in_a_pipe_and_nowhere_else(executor: ServerAppExecutor, tmp_path: Path) -> None:
    import json

    spec = SimpleNamespace(
        token=TOKEN,
        runtime_api_address="127.0.0.1:1",
        insecure=False,
        root_certificates_path="ca.crt",
        parent_pid=None,
    )
    executor.launch(spec)
    (process,) = executor._running
    until = time.monotonic() + 120
    while executor._running and time.monotonic() < until:
        executor.reconcile()
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)  # collected: it does not count as alive
    arguments, heard, seen = json.loads((tmp_path / "secret.said").read_text())
    assert heard == f"{TOKEN}\n"
    assert arguments[1:] == ["--runtime-api-address", "127.0.0.1:1", "--root-certificates", "ca.crt"]
    assert TOKEN not in seen


def test_only_server_apps_are_started(executor: ServerAppExecutor) -> None:
    assert executor.get_eligible_capacity(set(TaskType)) == ({TaskType.SERVER_APP}, set())
