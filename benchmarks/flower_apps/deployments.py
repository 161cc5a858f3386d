"""The two deployments of the benchmark, each run to its end in a folder of its own; no process outlives its run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farfield.deployment.federation_file import read_federation
from farfield.deployment.flower.processes import Process, environment, free_port, wait_for_port
from farfield.deployment.server.supervise import Security, serve
from flower_apps.experiment import EPOCHS, GAMMA, LR, SITES, UPSILON, Network, make_farfield, make_untuned

HERE = Path(__file__).parent
#: The name of the SuperLink in Flower's configuration.
LINK = "untuned"


class TookTooLong(RuntimeError):
    """A deployment that was given up."""


@dataclass(frozen=True)
class InTurns:
    """Seconds of each of our rounds and of the empty one before it, and what the sites computed in ours."""

    ours: list[float]
    floor: list[float]
    sites: list[float]
    compared: np.ndarray


@dataclass(frozen=True)
class Untuned:
    """Seconds of each round."""

    rounds: list[float]
    compared: np.ndarray


def run_in_turns(folder: Path, rounds: int, compare: int) -> InTurns:
    """Our rounds and empty ones. The first of each warms up, and our last one is evaluated: both are left out."""
    network = make_farfield(folder, rounds + 2)
    out = folder / "out"
    (out / "flower").mkdir(parents=True)
    (out / "flower" / "benchmark.json").write_text(json.dumps({"rounds_to_compare": compare}))
    federation = folder / "federation.toml"
    with contextlib.ExitStack() as running:
        for name in SITES:
            command = [sys.executable, str(HERE / "floor_site.py"), str(federation)]
            command += [str(network.site(name) / "site.toml"), str(network.certs / "ca.crt"), str(network.key(name))]
            running.enter_context(Process(name, command, folder / f"{name}.log", environment(folder / "home")))
        security = Security(network.certs, tuple(network.public(name) for name in SITES))
        serve(read_federation(federation), out, security, wait=180.0, app=HERE / "floor")
    noted = [json.loads(line) for line in (out / "flower" / "timings.jsonl").read_text().splitlines()]
    by_kind = {kind: [row[kind] for row in noted if kind in row][1:] for kind in ("ours", "floor", "sites")}
    # The last empty round is the one before our evaluated one.
    return InTurns(**by_kind | {"floor": by_kind["floor"][:rounds]}, compared=np.load(out / "flower" / "compared.npy"))


def run_untuned(folder: Path, rounds: int, seconds: float) -> Untuned:
    """The same training as one would write and start it after Flower's tutorials. The first round is left out."""
    network = make_untuned(folder)
    config = f'initial="{folder / "initial.npy"}" results="{folder}" num-server-rounds={rounds + 1} '
    config += f"num-nodes={len(SITES)} local-epochs={EPOCHS} lr={LR} gamma={GAMMA} upsilon={UPSILON}"
    with contextlib.ExitStack() as running:
        link = running.enter_context(_superlink(network))
        wait_for_port("127.0.0.1", network.port, link)
        for name in SITES:
            _flwr(network, "supernode", "register", str(network.public(name)), LINK, "--name", name)
        nodes = [running.enter_context(_supernode(network, name)) for name in SITES]
        _flwr(network, "run", str(HERE / "untuned"), LINK, "-c", config)
        until = time.monotonic() + seconds
        while not (folder / "finished").exists():
            for process in (link, *nodes):
                process.check()
            if time.monotonic() > until:
                raise TookTooLong(f"the untuned app is not done after {seconds:g} s; {link.log_tail()}")
            time.sleep(0.2)
    return Untuned(json.loads((folder / "timings.json").read_text())[1:], np.load(folder / "compared.npy"))


def _superlink(network: Network) -> Process:
    home = network.folder / "home"
    home.mkdir()
    config = f'[superlink.{LINK}]\naddress = "{network.address}"\nroot-certificates = "{network.certs / "ca.crt"}"\n'
    (home / "config.toml").write_text(config)
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(network.port)]
    command += ["--ssl-certfile", str(network.certs / "server.crt"), "--ssl-keyfile", str(network.certs / "server.key")]
    command += ["--ssl-ca-certfile", str(network.certs / "ca.crt"), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation"]
    return Process("Flower's SuperLink", command, network.folder / "superlink.log", _untuned_environment(home))


def _supernode(network: Network, name: str) -> Process:
    home = network.site(name) / "home"
    home.mkdir()
    command = ["flower-supernode", "--superlink", network.address, "--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--root-certificates", str(network.certs / "ca.crt")]
    command += ["--auth-supernode-private-key", str(network.key(name))]
    command += ["--node-config", f'data="{network.site(name) / "rows.npz"}"']
    return Process(f"the SuperNode of {name}", command, network.site(name) / "node.log", _untuned_environment(home))


def _untuned_environment(home: Path) -> dict[str, str]:
    """As ours, so that nothing is reported to anyone, but with Flower's own polling."""
    env = environment(home)
    del env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
    return env


def _flwr(network: Network, *arguments: str) -> None:
    env = _untuned_environment(network.folder / "home")
    done = subprocess.run(
        ["flwr", *arguments],
        env=env,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"flwr {arguments[0]} failed: {done.stdout[-600:]} {done.stderr[-600:]}")
