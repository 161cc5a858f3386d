"""The hospitals of the example, each behind a link of 4 Mbit/s with 100 ms delay each way, with TLS and keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from tests.deployment.slow_network import SERVER, SlowNetwork, round_trip, slow_network, throughput, why_not

_WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))

ROOT = Path(__file__).parents[2]
TRAINING, EVALUATING = ("cleveland", "hungarian", "switzerland"), "va"
ROUNDS = 3
DELAY, RATE = 100, 4_000_000
PATIENCE = 600.0


@pytest.fixture
def network() -> Iterator[SlowNetwork]:
    with slow_network([*TRAINING, EVALUATING], milliseconds=DELAY, bits_per_second=RATE) as made:
        yield made


def test_the_link_is_as_slow_as_it_says(network: SlowNetwork) -> None:
    """Not shorter than twice the delay, and not faster than the rate: what a slower machine adds is not asserted."""
    assert round_trip(network, "cleveland") >= 2 * DELAY / 1000
    assert throughput(network, "hungarian") <= 1.05 * RATE


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("hidden", [None, [400, 400]], ids=["small", "large"])
@pytest.mark.parametrize(("delay", "rate"), [(DELAY, RATE), (0, 10**9)], ids=["slow", "fast"])
def test_a_slow_network_gives_the_same_model(tmp_path: Path, hidden: list[int] | None, delay: int, rate: int) -> None:
    """The fast network is there for its figures: what the same processes take on the same machine without the link."""
    with slow_network([*TRAINING, EVALUATING], milliseconds=delay, bits_per_second=rate) as network:
        train(network, example(tmp_path, hidden), hidden)


def train(network: SlowNetwork, home: Path, hidden: list[int] | None) -> None:
    processes = []
    server = ["server", "federation.toml", "--certs", "certs", "--key", "keys", "--out", "model"]
    processes.append(start(network, "server", home, [*server, "--bind", "0.0.0.0:9443"]))
    for site in (*TRAINING, EVALUATING):
        client = ["client", "federation.toml", site, "--ca", "certs/ca.crt", "--key", f"{site}/{site}.key"]
        processes.append(start(network, site, home, [*client, "--accept", "--wait", "300"]))
    try:
        until = time.monotonic() + PATIENCE
        while any(process.poll() is None for process in processes):
            assert time.monotonic() < until, said(home)
            assert all(process.poll() in (None, 0) for process in processes), said(home)
            time.sleep(0.5)
        assert all(process.returncode == 0 for process in processes), said(home)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    result = json.loads((home / "model" / "run" / "result.json").read_text())
    assert not (home / "model" / "run" / "events.jsonl").exists(), "nothing was lost or late"
    here = on_one_machine(home, hidden)
    assert result["model_sha256"] == here["model_sha256"]
    sent = (result["bytes_up"] + result["bytes_down"]) / ROUNDS / len(TRAINING)
    each = f"{result['seconds'] / ROUNDS:.1f} s per round, {sent / 1000:.0f} kB per site and round"
    print(f"\n{each} ({network.by})")


def example(folder: Path, hidden: list[int] | None) -> Path:
    """A copy of the example with made-up rows, keys and certificates."""
    home = folder / "hospitals"
    shutil.copytree(ROOT / "examples" / "hospitals", home, ignore=shutil.ignore_patterns("*.csv", "*.key", "model"))
    subprocess.run([sys.executable, "prepare.py", "--made-up"], cwd=home, check=True, capture_output=True)
    text = (home / "federation.toml").read_text().replace("127.0.0.1:9443", f"{SERVER}:9443")
    text = text.replace("rounds = 10", f"rounds = {ROUNDS}")
    (home / "federation.toml").write_text(text + (f"[set]\nmodel.hidden = {hidden}\n" if hidden else ""))
    make_authority(home / "certs", 2)
    make_server_certificate(home / "certs", [SERVER], 2)
    (home / "keys").mkdir()
    for site in (*TRAINING, EVALUATING):
        make_node_key(home / site, site).public.rename(home / "keys" / f"{site}.pub")
    return home


def start(network: SlowNetwork, who: str, home: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [*network.prefix(who), sys.executable, "-m", "farfield", *arguments]
    with open(home / f"{who}.log", "wb") as log:
        return subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def said(home: Path) -> str:
    return "\n\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in sorted(home.glob("*.log")))


def on_one_machine(home: Path, hidden: list[int] | None) -> dict[str, object]:
    categorical = [word for name in ("cp", "restecg", "slope", "thal") for word in ("--categorical", name)]
    command = [
        sys.executable, "-m", "farfield", "bench", "--data", "joined.csv", "--label", "disease", "--domain", "hospital",
        *categorical, "-a", "fediir", "--held-out", EVALUATING, "--seeds", "1", "--rounds", str(ROUNDS),
        "--no-references", "--out", "joined", "--json", "joined.json",
    ]  # fmt: skip
    command += ["--set", f"model.hidden={hidden}"] if hidden else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=home, check=True, capture_output=True, env=environment)
    (row,) = json.loads((home / "joined.json").read_text())
    return dict(row)
