"""Who gets past the gate of a server's port, and who does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from farfield.deployment.flower.gate import Gate

SECRET = "0123456789abcdef"
SHOWN = [(b"authorization", f"Bearer {SECRET}".encode())]
HERE, SITE, LAN = "127.0.0.1", "192.0.2.7", "198.51.100.1"


def status(
    path: str,
    client: str | None,
    headers: list[tuple[bytes, bytes]] | None = None,
    kind: str = "http",
    ready: Path = Path("nowhere"),
    refused: Path = Path("nowhere/refused"),
    flowers: int = 200,
) -> int:
    """What is answered; 200 stands for Flower's own answer, unless it is another one."""
    sent: list[dict[str, Any]] = []

    async def flower(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": flowers, "headers": []})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": kind,
        "path": path,
        "client": None if client is None else (client, 50000),
        "server": (LAN, 9443),
        "headers": headers or [],
    }
    asyncio.run(Gate(flower, SECRET, ready, refused)(scope, None, send))  # type: ignore[arg-type]
    return int(sent[0]["status"]) if sent else 0


@pytest.mark.parametrize("client", [HERE, SITE, LAN])
def test_sites_reach_what_is_theirs(client: str) -> None:
    assert status("/v1/fleet/pull-messages", client) == 200


@pytest.mark.parametrize("path", ["/v1/control/register-node", "/v1/control/start-run", "/v1/control/list-nodes"])
def test_control_wants_the_secret_and_this_machine(path: str) -> None:
    assert status(path, HERE, SHOWN) == 200
    assert status(path, LAN, SHOWN) == 200, "the server's own processes use its address"
    assert status(path, HERE) == 403
    assert status(path, HERE, [(b"authorization", b"Bearer something")]) == 403
    assert status(path, HERE, [(b"authorization", SECRET.encode())]) == 403
    assert status(path, HERE, SHOWN * 2) == 403
    assert status(path, SITE, SHOWN) == 403
    assert status(path, SITE) == 403


@pytest.mark.parametrize("path", ["/v1/runtime/pull-task", "/docs", "/openapi.json", "/", "//v1/fleet/x", "/v1/fleet"])
def test_the_rest_is_for_this_machine(path: str) -> None:
    assert status(path, HERE) == 200
    assert status(path, LAN) == 200
    assert status(path, SITE) == 403
    assert status(path, None) == 403


def test_other_protocols_are_not_let_through() -> None:
    assert status("/v1/fleet/x", HERE, kind="websocket") == 0


def test_a_site_can_ask_whether_its_key_is_registered_yet(tmp_path: Path) -> None:
    assert status("/farfield/ready", SITE, ready=tmp_path / "ready") == 503
    (tmp_path / "ready").touch()
    assert status("/farfield/ready", SITE, ready=tmp_path / "ready") == 200


def test_who_is_not_let_in_by_flower_is_noted_for_the_operator(tmp_path: Path) -> None:
    file = tmp_path / "refused"
    assert status("/v1/fleet/activate", SITE, refused=file) == 200
    assert status("/v1/runtime/pull-task", HERE, refused=file, flowers=404) == 404
    assert status("/v1/fleet/push-messages", SITE, refused=file, flowers=403) == 403, "of a run that has ended"
    assert not file.exists(), "only sites are, and only those that were turned away"
    assert status("/v1/fleet/pull-messages", SITE, refused=file, flowers=401) == 401
    assert status("/v1/fleet/activate-node", SITE, refused=file, flowers=412) == 412
    assert file.read_text() == f"{SITE}\n" * 2
    assert status("/v1/fleet/activate", SITE, refused=tmp_path / "none" / "x", flowers=401) == 401
