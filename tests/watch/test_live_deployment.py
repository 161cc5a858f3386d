"""A real deployment on loopback, watched from before its first site joins to its end, through a kill of its server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.network import SITES, arrays, deployment
from tests.watch.serving import ask, served


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_deployment_is_followed_through_a_kill_of_its_server(tmp_path: Path) -> None:
    everyone = (*SITES, "dune")
    net_folder = tmp_path / "net"
    with deployment(net_folder, algorithm="fedavg", rounds=3, evaluating=1) as net, served(net.out) as view:
        seen: list[dict[str, Any]] = []

        def state() -> dict[str, Any]:
            seen.append(json.loads(ask(view.port, "/state")[2]))
            return seen[-1]

        def until(what: str, check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            limit = time.monotonic() + 600
            while not check(now := state()):
                assert time.monotonic() < limit, f"{what}: {now}"
                time.sleep(0.1)
            return now

        assert state()["status"] == "waiting"
        net.add_site("dune", *arrays(everyone)["dune"], role="evaluate")
        server = net.server()
        until("the server", lambda s: s["headline"] == "The server is waiting for its sites.")
        clients = [net.client(name) for name in everyone]
        now = until("a round", lambda s: s["kind"] == "deployment" and s["rounds"]["done"] >= 1)
        assert now["status"] == "running"
        assert {site["name"]: site["role"] for site in now["sites"]} == {
            **dict.fromkeys(SITES, "train"),
            "dune": "evaluate",
        }
        assert now["replies"][-1]["names"] == list(SITES)
        assert any("site 'amber' has joined" in event["text"] for event in now["events"])
        net.kill(server)
        net.until("the end of its processes", lambda: not _answers(net.port))
        resumed = net.server("--resume")
        end = until("the end", lambda s: s["status"] == "finished" and _measured(s) != [])
        for process in (resumed, *clients):
            net.wait(process)
    assert end["rounds"] == {"done": 3, "total": 3}
    assert [row["round"] for row in end["replies"]] == [3, 2, 1]
    assert "dune" in _measured(end)[0]
    assert not [s for s in seen if s["status"] != "finished" and _measured(s)]


def _measured(state: dict[str, Any]) -> list[str]:
    return [event["text"] for event in state.get("events", ()) if event["kind"] == "measured"]


def _answers(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
