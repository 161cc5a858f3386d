"""Ctrl-C on a real terminal command."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long


def test_an_interrupted_bench_says_how_to_resume_and_leaves_no_process_behind(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    # A test run in the background of a shell ignores Ctrl-C, and what it starts would do so too.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start = [sys.executable, "-c", f"{listen}; from farfield.cli.main import run; run()"]
    options = [
        "bench",
        "--no-references",
        "rotated-digits",
        "-a",
        "fedavg,scaffold",
        "--seeds",
        "1",
        "--rounds",
        "2000",
        "--out",
        str(out),
    ]
    process = subprocess.Popen([*start, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while not list(out.glob("runs/*/*/*/rounds.jsonl")) and time.monotonic() < limit:
        time.sleep(0.1)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert children
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    for child in children:
        assert not Path(f"/proc/{child}").exists()
    rows = sum(len(f.read_text().splitlines()) for f in out.glob("runs/*/*/*/rounds.jsonl"))
    assert rows > 0
