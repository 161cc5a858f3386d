"""How long-running commands end by signals: the exit code, the last line, and what they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr")

from farfield.deployment.credentials.create import make_authority, make_node_key
from farfield.deployment.flower.processes import free_port


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_site_that_waits_for_its_server_can_be_stopped(tmp_path: Path, number: int, code: int) -> None:
    make_authority(tmp_path / "certs", 2)
    make_node_key(tmp_path, "amber")
    content = {"name": "toy", "server": f"127.0.0.1:{free_port()}", "algorithm": "fedavg", "rounds": 2, "sites": 1}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(content))
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=np.arange(30) % 3)
    (tmp_path / "site.toml").write_text(tomli_w.dumps({"name": "amber", "data": "rows.npz"}))
    command = [sys.executable, "-m", "farfield", "client", "federation.toml", ".", "--ca", "certs/ca.crt"]
    command += ["--key", "amber.key", "--accept", "--wait", "300"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while "no server answers" not in log.read_text() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(60) == code, log.read_text()
    assert "this site has left; the same command joins again" in log.read_text()


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """A process that ignores the request to end holds the command for seconds; the second signal does not wait."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from farfield.cli.ending import EndedBySignals\n"
        "from farfield.deployment.flower.processes import Process, environment\n"
        "stubborn = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); '\n"
        "stubborn += 'print(1, flush=True); time.sleep(600)'\n"
        "folder = Path(sys.argv[1])\n"
        "with EndedBySignals():\n"
        "    with Process('it', [sys.executable, '-c', stubborn], folder / 'log', environment(folder)):\n"
        "        while '1' not in (folder / 'log').read_text(): time.sleep(0.05)\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None, "it waits for what it has started"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    end = time.monotonic() + 60
    while _running("time.sleep(600)", str(tmp_path)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _running("time.sleep(600)", str(tmp_path))


def _running(*parts: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_text(errors="replace") + (entry / "environ").read_text(errors="replace")
                if all(part in text for part in parts):
                    found.append(int(entry.name))
    return found
