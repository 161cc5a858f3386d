"""Peers as processes of their own environments, and what they report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.interleaved import Timings
from benchmarks.speed.case import Skipped
from benchmarks.speed.peers.workload import Workload

ROOT = Path(__file__).parents[2]
#: The environment of the peers that do not install beside Farfield; `make peers` creates it.
PEERS = ROOT / ".venv-peers" / "bin" / "python"
#: Nothing calls home, and libraries say no more than they must.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
PATIENCE = 3600.0


@dataclass(frozen=True)
class Reported:
    """What a peer's process reported: its rounds in turns with the bare loop, and the model that it learned."""

    timings: Timings
    model: Tensor
    version: str


def pfl(workload: Workload, rounds: int) -> Reported:
    """Measure pfl's simulation on a workload; the first of the rounds is not counted."""
    if not PEERS.exists():
        raise Skipped("pfl has no environment here; `make peers` creates it")
    return _measure(
        [str(PEERS), "-m", "benchmarks.speed.peers.pfl_rounds"], workload, rounds, {"PYTHONPATH": str(ROOT)}
    )


def flower(workload: Workload, rounds: int) -> Reported:
    """Measure Flower's simulation on a workload; the first two of the rounds are not counted."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise Skipped("Flower's simulation is not installed: pip install 'farfield[sim]'")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return _measure(
        [sys.executable, "-m", "benchmarks.speed.peers.flower_rounds"], workload, rounds, {"PYTHONPATH": path}
    )


def _measure(command: list[str], workload: Workload, rounds: int, variables: Mapping[str, str]) -> Reported:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.save(folder)
        done = subprocess.run(
            [*command, name, str(rounds)],
            cwd=ROOT,
            env={**os.environ, **QUIET, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if done.returncode or not (folder / "report.json").exists():
            print(done.stderr[-4000:], file=sys.stderr)
            raise RuntimeError(f"{command[-1]} ended with exit code {done.returncode}")
        report = json.loads((folder / "report.json").read_text())
        timings = Timings({"rounds": report["rounds"], "bare loop": report["bare"]})
        return Reported(timings, torch.from_numpy(np.load(folder / "model.npy")), report["version"])
