"""A sweep that is killed again and again, at moments nobody chose, ends in the same bits as one that is left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

KILLS = 3 if os.environ.get("FARFIELD_SHORT") else 12
ALGORITHMS = "fedavg,scaffold,local-only,fedprox+fedadam"


def command(out: Path, *more: str) -> list[str]:
    start = [
        sys.executable,
        "-c",
        "from farfield.cli.main import run; run()",
        "bench",
        "rotated-digits",
        "--no-references",
    ]
    options = ["-a", ALGORITHMS, "--held-out", "0,30", "--seeds", "1", "--rounds", "40", "--checkpoint-every", "3"]
    return [*start, *options, "--out", str(out), "--quiet", *more]


def hashes(file: Path) -> dict[tuple[str, str, int], tuple[str, int, int]]:
    return {
        (r["algorithm"], r["held_out"], r["seed"]): (r["model_sha256"], r["local_steps"], r["bytes_up"])
        for r in json.loads(file.read_text())
    }


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [int(p) for p in found]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_killed_at_random_moments_resumes_to_the_same_bits(tmp_path: Path, workers: int) -> None:
    whole = tmp_path / "whole.json"
    subprocess.run(command(tmp_path / "whole", "--json", str(whole)), check=True, stdout=subprocess.DEVNULL)
    out = tmp_path / "killed"
    chance = random.Random(workers)
    killed = 0
    for attempt in range(KILLS):
        more = ["--workers", str(workers), *(["--resume"] if (out / "bench.toml").exists() else [])]
        process = subprocess.Popen(command(out, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 60
        while attempt == 0 and not list(out.glob("runs/*/*/*/rounds.jsonl")) and time.monotonic() < limit:
            time.sleep(0.05)  # the first kill hits a run under way, not the start of Python
        time.sleep(chance.uniform(0.0, 1.5) if attempt == 0 else chance.uniform(2.0, 6.0))
        if process.poll() is None:
            for child in children_of(process.pid):
                if chance.random() < 0.5:
                    os.kill(child, signal.SIGKILL)
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed >= 1
    resumed = tmp_path / "resumed.json"
    subprocess.run(command(out, "--resume", "--json", str(resumed)), check=True, stdout=subprocess.DEVNULL, timeout=600)
    assert hashes(resumed) == hashes(whole)
