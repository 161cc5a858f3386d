"""A real deployment with secure sums on loopback: the bits of one machine, with sites that know one another's keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from tests.deployment import network
from tests.deployment.network import Deployment, arrays, as_task, deployment

pytestmark = [pytest.mark.long, pytest.mark.timeout(2000)]
FOUR = ("amber", "birch", "cedar", "dune")
SECURE = {"secure_sums": True}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum has four or five exchanges, so that a busy machine needs several times as long as for plain rounds."""
    monkeypatch.setattr(network, "PATIENCE", 900.0)


def trained_here(folder: Path, algorithm: str, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    ff.train(as_task(arrays(FOUR)), algorithm, folder, rounds=rounds, settings=SECURE)
    return dict(json.loads((folder / "run" / "result.json").read_text()))


def let_know_one_another(net: Deployment) -> None:
    for name in FOUR:
        peers = net.folder / name / "peers"
        peers.mkdir()
        for other in FOUR:
            (peers / f"{other}.pub").write_bytes((net.keys / f"{other}.pub").read_bytes())
        path = net.folder / name / "site.toml"
        path.write_text(path.read_text() + 'peers = "peers"\n')


@pytest.mark.parametrize(("algorithm", "known"), [("fedavg", False), ("scaffold", True), ("fediir", True)])
def test_a_deployment_with_secure_sums_gives_the_same_bytes_as_one_machine(
    tmp_path: Path, algorithm: str, known: bool
) -> None:
    with deployment(tmp_path / "net", sites=FOUR, algorithm=algorithm, rounds=2, set=SECURE) as net:
        if known:
            let_know_one_another(net)
        server = net.server()
        clients = [net.client(name) for name in FOUR]
        for process in (server, *clients):
            net.wait(process)
    local = trained_here(tmp_path / "local", algorithm, 2)
    assert net.result()["model_sha256"] == local["model_sha256"]
    assert not net.events()
    rounds = [(folder / "run" / "rounds.jsonl").read_text().splitlines() for folder in (net.out, tmp_path / "local")]
    figures = [[json.loads(line)["validation"] for line in lines] for lines in rounds]
    assert figures[0] == figures[1]
    assert list(figures[0][-1]) == ["all 4 clients together"]
    said = [row["text"] for row in net.activity("amber") if row["kind"] == "phase"]
    exchanges = {"advertise", "share", "mask", "unmask", *(["agree"] if known else [])}
    assert {text.partition(", secure sum: ")[2] for text in said} == exchanges


def test_a_killed_server_goes_on_to_the_same_bytes_with_secure_sums(tmp_path: Path) -> None:
    with deployment(tmp_path / "net", sites=FOUR, algorithm="scaffold", rounds=4, set=SECURE) as net:
        server = net.server()
        clients = [net.client(name) for name in FOUR]
        net.until("a sum of round 2", lambda: any(row.get("round") == 2 for row in net.activity("amber")))
        net.kill(server)
        resumed = net.server("--resume")
        for process in (resumed, *clients):
            net.wait(process)
    assert net.result()["model_sha256"] == trained_here(tmp_path / "local", "scaffold", 4)["model_sha256"]
