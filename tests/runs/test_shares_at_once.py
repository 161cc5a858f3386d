"""Shares that are started at the same time, as commands of their own (make cluster)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.test_together import records

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

FARFIELD = [sys.executable, "-m", "farfield"]
BENCH = ["bench", "rotated-digits", "--no-references", "-a", "fedavg,scaffold", "--held-out", "0,30", "--seeds", "2"]
SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "bench.sbatch"


def start(*options: str) -> subprocess.Popen[str]:
    command = [*FARFIELD, *BENCH, "--rounds", "5", "--no-diagnose", "-j", "1", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "bench"
    assert start("--out", str(out)).wait() == 0
    return out


@pytest.mark.parametrize("shares", [2, 4])
def test_shares_that_start_at_once_make_one_bench(tmp_path: Path, whole: Path, shares: int) -> None:
    out = tmp_path / "new" / "bench"
    started = [start("--out", str(out), "--share", f"{number}/{shares}") for number in range(1, shares + 1)]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * shares, said
    assert records(out) == records(whole)
    assert len(records(out)) == 8
    reports = [printed for printed, _ in said if "report: " in printed]
    assert len(reports) >= 1
    assert (out / "report.html").exists()
    for printed, _ in said:
        assert "report: " in printed or f"farfield report {out}" in printed
    assert len((out / "commands.jsonl").read_text().splitlines()) == shares


def test_the_example_of_a_job_array_makes_the_bench(tmp_path: Path, whole: Path) -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0
    out = tmp_path / "bench"
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    farfield = tmp_path / "farfield"
    farfield.write_text(f'#!/bin/sh\nexec {sys.executable} -m farfield "$@"\n')
    farfield.chmod(0o755)
    for number in (1, 2):
        slurm = {
            "SLURM_ARRAY_TASK_ID": str(number),
            "SLURM_ARRAY_TASK_MIN": "1",
            "SLURM_ARRAY_TASK_COUNT": "2",
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_RESTART_COUNT": str(number - 1),
            "WAIT_FOR_LOCKS": "0",
            "OUT": str(out),
            "BENCH": " ".join([*BENCH[1:], "--rounds", "5", "--no-diagnose"]),
        }
        ran = subprocess.run(
            ["bash", str(SCRIPT)], env={**os.environ, "PATH": path, **slurm}, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
    assert records(out) == records(whole)
    assert (out / "report.html").exists()
