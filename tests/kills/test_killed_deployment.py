"""Servers and sites of a real deployment that are killed again and again, at random moments.

A killed server goes on to the same bytes. A round that a site has missed cannot have the same bytes: there the model is
compared with one that was trained on one machine with the same client missing in the same rounds. A site misses rounds
when it is killed, and now and then when Flower does not see it for a while after a server has come back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from farfield.algorithms.scaffold import Scaffold
from tests.deployment.network import SITES, Deployment, arrays, as_task, children_of, deployment

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

SHORT = bool(os.environ.get("FARFIELD_SHORT"))
SERVER_KILLS, SITE_KILLS = (2, 1) if SHORT else (20, 8)
ROUNDS = 30 if SHORT else 80
#: Long training on few rows makes updates that show single ones, and sites would not send these.
ALL_ROWS = {"shown_rows": 40}
#: Seconds that the rounds after the last kill may take.
LAST_ROUNDS = 1800.0


def rounds_made(net: Deployment) -> int:
    return max((row["round"] for row in net.activity("server") if row["kind"] == "round"), default=0)


def processes_of(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    below = [int(child) for child in path.read_text().split()] if path.exists() else []
    return [pid, *(each for child in below for each in processes_of(child))]


def victims(pid: int) -> list[int]:
    """Return the processes without which a server cannot go on: the command, the SuperLink and the ServerApp.

    Flower's SuperExec is left out: it starts the ServerApp and is not needed afterwards.
    """
    commands = {each: Path(f"/proc/{each}/cmdline").read_bytes().decode(errors="replace") for each in processes_of(pid)}
    return [each for each, command in commands.items() if "superexec" not in command]


def test_a_server_killed_at_random_moments_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    chance = random.Random(3)
    with deployment(tmp_path / "net", limits=ALL_ROWS, algorithm="scaffold", rounds=ROUNDS) as net:
        server = net.server()
        clients = [net.client(name) for name in SITES]
        kept: dict[int, Any] = {}
        for _ in range(SERVER_KILLS):
            _until_another_round(net, server)
            time.sleep(chance.uniform(0.0, 1.0))
            os.kill(chance.choice(victims(server.pid)), signal.SIGKILL)
            server.wait(60)
            net.until("the end of its processes", lambda: not children_of(net.out))
            for row in _rows(net):
                assert kept.setdefault(row["round"], row["validation"]) == row["validation"]
            server = net.server("--resume")
        for process in (server, *clients):
            net.wait(process, patience=LAST_ROUNDS)
        rows = {row["round"]: row["validation"] for row in _rows(net)}
        assert rows.keys() == set(range(1, ROUNDS + 1))
        assert {round: rows[round] for round in kept} == kept, "a recorded row was lost or has changed"
    missing = _missed(net)
    assert len(missing) <= SERVER_KILLS, "a kill costs at most one site a round"
    assert net.result()["model_sha256"] == _trained_without(tmp_path / "local", missing, Scaffold)
    print(f"{SERVER_KILLS} kills of the server, {len(kept)} rows seen, {len(missing)} updates missed")


def test_a_site_killed_at_random_moments_is_missed_in_those_rounds_and_in_no_other(tmp_path: Path) -> None:
    chance = random.Random(4)
    federation = {"algorithm": "fedavg", "rounds": ROUNDS, "deadline": 15.0, "quorum": 0.6}
    with deployment(tmp_path / "net", limits=ALL_ROWS, **federation) as net:
        server = net.server()
        clients = {name: net.client(name) for name in SITES}
        for _ in range(SITE_KILLS):
            _until_another_round(net, server)
            time.sleep(chance.uniform(0.0, 1.0))
            name = chance.choice(SITES)
            for pid in processes_of(clients[name].pid):
                os.kill(pid, signal.SIGKILL)
            clients[name].wait(60)
            clients[name] = net.client(name)
            _until_all_answer(net, server)
        net.wait(server, patience=LAST_ROUNDS)
    missing = _missed(net)
    assert missing
    assert net.result()["model_sha256"] == _trained_without(tmp_path / "local", missing, ff.FedAvg)
    print(f"{SITE_KILLS} kills of sites, {len(missing)} updates missed")


def _until_another_round(net: Deployment, server: subprocess.Popen[bytes]) -> None:
    before = rounds_made(net)
    net.until("another round", lambda: rounds_made(net) > before or server.poll() is not None)
    assert server.poll() is None, "the run was finished before it was killed often enough"


def _until_all_answer(net: Deployment, server: subprocess.Popen[bytes]) -> None:
    """Wait for a round with every site; the one under way may have the last reply of a site that was killed in it."""
    under_way = rounds_made(net) + 1

    def complete() -> bool:
        rounds = [row for row in net.activity("server") if row["kind"] == "round" and row["round"] > under_way]
        return any(row["sites"] == f"all {len(SITES)} sites" for row in rounds)

    net.until("a round with every site", lambda: complete() or server.poll() is not None)


def _rows(net: Deployment) -> list[dict[str, Any]]:
    from farfield.records import RunFolder

    return [row for row in RunFolder(net.out / "run").rounds() if "validation" in row]


def _missed(net: Deployment) -> set[tuple[str, int]]:
    """Return the rounds that were made without a site's update, each with the site."""
    dropped = [event for event in net.events() if event["kind"] == "reply-dropped" and event["phase"] == "train"]
    return {(SITES[event["client"]], event["round"]) for event in dropped}


def _trained_without(folder: Path, missing: set[tuple[str, int]], method: type[ff.FedAvg]) -> str:
    """Train on one machine, with each of these (site, round) pairs missing, and return the model's hash."""

    class Gaps(method):  # type: ignore[misc, valid-type]
        name = "with-gaps"

        def train(self, client: Any, model: Any, **shared: Any) -> Any:
            if (client.name, client.round) in missing:
                raise ConnectionError("this site was killed in this round")
            return super().train(client, model, **shared)

    torch.set_num_threads(1)
    ff.train(as_task(arrays()), Gaps, folder, rounds=ROUNDS)
    return str(json.loads((folder / "run" / "result.json").read_text())["model_sha256"])
