"""A server's doctor, and the command: one thing is wrong at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

pytest.importorskip("flwr")

from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from farfield.deployment.doctor.check import Check
from farfield.deployment.doctor.server import check_server
from farfield.deployment.federation_file import read_federation
from farfield.deployment.flower.listening import open_socket
from farfield.records import RunFolder
from farfield.records.run import sole_writer
from tests.deployment.network import free_port


class Server:
    """A server's files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certs, self.keys, self.out = folder, folder / "certs", folder / "keys", folder / "out"
        self.host, self.port, self.bind = "127.0.0.1", free_port(), None
        make_authority(self.certs, 100)
        make_server_certificate(self.certs, ["127.0.0.1"], 90)
        for name in ("amber", "birch"):
            made = make_node_key(folder / "sites", name)
            self.keys.mkdir(exist_ok=True)
            made.public.rename(self.keys / made.public.name)

    def checks(self, **given: Any) -> dict[str, Check]:
        content = {"name": "toy", "server": f"{self.host}:{self.port}", "algorithm": "fedavg", "sites": 2}
        (self.folder / "federation.toml").write_text(tomli_w.dumps(content))
        asked = {"certificates": self.certs, "keys": [self.keys], "bind": self.bind, "out": self.out, **given}
        return {check.name: check for check in check_server(read_federation(self.folder), **asked)}


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_where_all_is_right_nothing_fails(server: Server) -> None:
    checks = server.checks()
    assert [name for name, check in checks.items() if check.status != "ok"] == ["address"], "it is loopback"
    assert checks["sites' keys"].text == "2 (amber, birch)"
    assert not server.out.exists()


def test_a_certificate_for_another_name_or_of_another_authority(server: Server, tmp_path: Path) -> None:
    server.host, server.bind = "192.0.2.7", f"127.0.0.1:{server.port}"
    assert server.checks()["certificate's name"].status == "failed"
    make_server_certificate(server.certs, ["192.0.2.7"], 90, force=True)
    assert server.checks()["certificate's name"].status == "ok"
    other = make_authority(tmp_path / "other", 3)
    (server.certs / "ca.crt").write_bytes(other.certificate.read_bytes())
    assert server.checks()["certificate's chain"].status == "failed"


def test_keys_that_are_missing_or_open_or_private(server: Server) -> None:
    (server.certs / "server.key").chmod(0o640)
    check = server.checks()["key's mode"]
    assert check.status == "ok", "the last one is ca.key"
    assert "ca.key' has mode 0600" in check.text
    (server.certs / "ca.key").chmod(0o644)
    assert server.checks()["key's mode"].status == "failed"
    (server.keys / "birch.pub").rename(server.folder / "birch.pub")
    assert server.checks()["sites' keys"].status == "warning"
    assert server.checks(keys=[])["sites' keys"].status == "failed"
    (server.keys / "birch.pub").write_text("no key")
    assert "is no public key" in server.checks()["sites' keys"].text


def test_a_private_key_among_the_public_ones_is_named(server: Server) -> None:
    (server.folder / "sites" / "amber.key").rename(server.keys / "amber.key")
    made = check_server(
        read_federation(_written(server)), certificates=server.certs, keys=[server.keys], bind=None, out=None
    )
    assert any(check.status == "failed" and "amber.key" in check.text for check in made)


def _written(server: Server) -> Path:
    server.checks()
    return server.folder


def test_a_port_in_use_and_an_address_of_another_machine(server: Server) -> None:
    with open_socket("127.0.0.1", server.port):
        assert server.checks()["port"].status == "failed"
    server.host = "192.0.2.7"
    check = server.checks()["port"]
    assert check.status == "failed"
    assert "--bind" in check.text
    server.bind = f"0.0.0.0:{server.port}"
    checks = server.checks()
    assert checks["port"].status == "ok"
    assert checks["address"].status == "ok"


def test_a_name_that_is_loopback_here_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian writes it into /etc/hosts: the machine's own name is 127.0.1.1."""
    import socket

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", server.port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    server.host = "fl.example.org"
    check = server.checks()["address"]
    assert check.status == "failed"
    assert f"--bind 0.0.0.0:{server.port}" in check.text


def test_what_is_in_the_output_folder(server: Server) -> None:
    run = RunFolder(server.out / "run")
    run.create({"seed": 0})
    assert "--start-or-resume" in server.checks()["run"].text
    (server.out / "flower").mkdir()
    with sole_writer(server.out / "flower", 0.0):
        checks = server.checks()
        assert "is running" in checks["run"].text
        assert checks["port"].status == "ok"
    run.finish({"rounds": 1})
    assert server.checks()["run"].status == "warning"


def ran(server: Server, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farfield", "doctor", "federation.toml", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=_written(server), check=False)


@pytest.mark.slow
def test_the_command_ends_with_0_1_or_2(server: Server) -> None:
    good = ran(server, "--certs", "certs", "--key", "keys", "--out", "out", "--json", "checks.json")
    assert good.returncode == 0, good.stdout + good.stderr
    written = json.loads((server.folder / "checks.json").read_text())
    assert written["ok"] is True
    assert written["role"] == "server"
    assert len(good.stdout.splitlines()) == len(written["checks"]), "one line per check"
    bad = ran(server, "--certs", "certs")
    assert bad.returncode == 1
    assert "failed  sites' keys: none" in bad.stdout
    wrong = ran(server, "--certs", "certs", "--ca", "certs/ca.crt")
    assert wrong.returncode == 2
    assert "--ca and --state are a site's" in wrong.stderr
