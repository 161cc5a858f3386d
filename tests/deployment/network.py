"""A deployment on loopback for tests: a server and its sites, each started as its operator would start it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

import farfield as ff
from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from farfield.tasks import Task

#: Names of sites, in the order in which one machine numbers them.
SITES = ("amber", "birch", "cedar")
#: Seconds after which a test gives up; a machine may be slow, and nothing here asserts a time.
PATIENCE = 600.0


def arrays(sites: tuple[str, ...] = SITES, rows: int = 40) -> dict[str, tuple[Any, Any]]:
    """Three classes that lie a little differently at each site."""
    made = {}
    for number, site in enumerate(sites):
        generator = np.random.default_rng(number)
        y = np.arange(rows) % 3
        centres = np.eye(3, 5) * 2.0 + 0.3 * number
        made[site] = ((centres[y] + generator.normal(size=(rows, 5))).astype(np.float32), y.astype(np.int64))
    return made


def as_task(made: Mapping[str, tuple[Any, Any]], name: str = "toy") -> Task:
    return ff.task_from_arrays(name, dict(made))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Deployment:
    """Certificates, a federation file and sites in a folder; processes that are ended when the test is."""

    def __init__(
        self, folder: Path, sites: tuple[str, ...] = SITES, limits: Mapping[str, Any] | None = None, **federation: Any
    ) -> None:
        self.folder, self.out, self.certs = folder, folder / "out", folder / "certs"
        self.certs.mkdir(parents=True)
        make_authority(self.certs, 2)
        make_server_certificate(self.certs, ["127.0.0.1"], 2)
        self.port = free_port()
        content = {
            "name": "toy",
            "server": f"127.0.0.1:{self.port}",
            "algorithm": "fedavg",
            "rounds": 2,
            "sites": len(sites),
            **federation,
        }
        self.file = folder / "federation.toml"
        self.file.write_text(tomli_w.dumps(content))
        self.keys = folder / "keys"
        self.keys.mkdir()
        for name, (x, y) in arrays(sites).items():
            self.add_site(name, x, y, **({} if limits is None else {"limits": dict(limits)}))
        self._running: list[subprocess.Popen[bytes]] = []

    def add_site(self, name: str, x: Any, y: Any, known: bool = True, **site: Any) -> None:
        home = self.folder / name
        home.mkdir()
        np.savez(home / "rows.npz", x=x, y=y)
        (home / "site.toml").write_text(tomli_w.dumps({"name": name, "data": "rows.npz", **site}))
        make_node_key(home, name)
        if known:
            (home / f"{name}.pub").rename(self.keys / f"{name}.pub")

    def server(self, *options: str) -> subprocess.Popen[bytes]:
        return self._start(
            "server", "server", str(self.file), "--out", str(self.out), "--certs", str(self.certs),
            "--key", str(self.keys), *options,
        )  # fmt: skip

    def client(self, name: str, *options: str, folder: str | None = None) -> subprocess.Popen[bytes]:
        home = self.folder / (folder or name)
        return self._start(
            name, "client", str(self.file), str(home), "--ca", str(self.certs / "ca.crt"),
            "--key", str(home / f"{folder or name}.key"), "--accept", "--wait", "120", *options,
        )  # fmt: skip

    def run(self, *options: str) -> dict[str, Any]:
        """The whole federation to its end."""
        server = self.server(*options)
        clients = [self.client(name) for name in SITES if (self.folder / name).exists()]
        self.wait(server)
        for client in clients:
            self.wait(client)
        return self.result()

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "run" / "result.json").read_text()))

    def events(self) -> list[dict[str, Any]]:
        path = self.out / "run" / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def activity(self, of: str) -> list[dict[str, Any]]:
        """What the server ("server") or a site has noted so far."""
        folder = self.out / "flower" if of == "server" else self.folder / of / ".farfield" / f"toy-{of}"
        path = folder / "activity.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, what: str, seen: Callable[[], bool], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not seen():
            assert time.monotonic() < end, f"{what} did not happen; {self.said('server')}"
            time.sleep(0.1)

    def wait(self, process: subprocess.Popen[bytes], code: int = 0, patience: float = PATIENCE) -> None:
        try:
            ended = process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end; the server said: {self.said('server')}") from None
        name = process.log.stem
        assert ended == code, f"{name} ended with {ended}: {self.said(name)}"

    def said(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """As a power cut would, as far as a test can: no chance to tidy up."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{name}.log"
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "farfield", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
            )
        process.log = log  # type: ignore[attr-defined]
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.terminate()
        for process in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
            if process.poll() is None:
                process.kill()
                process.wait()


def children_of(folder: Path) -> list[str]:
    """Commands of processes that have to do with this folder: none when a deployment has ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                surroundings = (entry / "environ").read_bytes().decode(errors="replace")
                if str(folder) in command or f"FLWR_HOME={folder}" in surroundings:
                    found.append(command)
    return found


@contextlib.contextmanager
def deployment(folder: Path, **given: Any) -> Iterator[Deployment]:
    made = Deployment(folder, **given)
    try:
        yield made
    finally:
        made.end()
        end = time.monotonic() + 20
        while children_of(folder) and time.monotonic() < end:
            time.sleep(0.2)
    left = children_of(folder)
    assert not left, f"processes are left behind: {left}"


def trained_here(folder: Path, algorithm: str, rounds: int, sites: tuple[str, ...] = SITES) -> str:
    """The hash of the same experiment's final model on one machine."""
    torch.set_num_threads(1)
    ff.train(as_task(arrays(sites)), algorithm, folder, rounds=rounds)
    return str(json.loads((folder / "run" / "result.json").read_text())["model_sha256"])
