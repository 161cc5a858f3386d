"""Where a SuperLink listens when that is not where sites connect, and what certificate it shows to whom."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from farfield.deployment.credentials.create import make_authority, make_server_certificate
from farfield.deployment.flower.gate import from_this_machine
from farfield.deployment.flower.listening import VARIABLE, answer_local_name, open_socket, open_sockets, where_told
from tests.deployment.network import free_port

HAS_IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and Path("/proc/net/if_inet6").read_text() != ""


def reached(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(5)
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "127.0.0.9"])
def test_whoever_listens_elsewhere_listens_at_loopback_too(host: str) -> None:
    port = free_port()
    listening = open_sockets(host, port)
    try:
        assert reached("127.0.0.1", port)
        assert reached("127.0.0.9", port) == (host != "127.0.0.1")
        assert not reached("127.0.0.8", port) or host == "0.0.0.0"
    finally:
        for listener in listening:
            listener.close()


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_the_unspecified_address_of_ipv6_is_for_ipv4_as_well_and_the_gate_knows_its_own_machine() -> None:
    port = free_port()
    with open_socket("::", port) as listener:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), timeout=5):
                accepted, peer = listener.accept()
                accepted.close()
                assert from_this_machine({"client": peer, "server": ("::", port)}), peer
    assert not from_this_machine({"client": ("::ffff:192.0.2.7", 1), "server": ("::ffff:198.51.100.1", port)})
    with open_socket("::1", port):
        assert reached("::1", port)
        assert not reached("127.0.0.1", port)


def test_an_address_in_use_is_an_error_and_no_socket_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with open_socket("127.0.0.1", port), pytest.raises(OSError, match="in use"):
        open_socket("127.0.0.1", port)


def test_what_listens_elsewhere_has_the_signature_of_what_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else wraps `uvicorn.run` looks at its parameters first."""
    import inspect

    uvicorn = pytest.importorskip("uvicorn")
    assert where_told(uvicorn.run) is uvicorn.run
    monkeypatch.setenv(VARIABLE, '{"host": "0.0.0.0", "port": 1}')
    there = where_told(uvicorn.run)
    assert there is not uvicorn.run
    assert inspect.signature(there) == inspect.signature(uvicorn.run)


def names_seen(port: int, trusted: Path, name: str) -> list[str]:
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        return [value for _, value in secured.getpeercert()["subjectAltName"]]  # type: ignore[index]


def test_own_processes_see_a_certificate_for_localhost_and_sites_see_the_servers(tmp_path: Path) -> None:
    for folder, host in (("public", "fl.example.org"), ("own", "localhost")):
        make_authority(tmp_path / folder, 2)
        make_server_certificate(tmp_path / folder, [host], 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "public" / "server.crt", tmp_path / "public" / "server.key")
    answer_local_name(context, str(tmp_path / "own" / "server.crt"), str(tmp_path / "own" / "server.key"))
    listener = open_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]

    def serve() -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except (ssl.SSLError, OSError):
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert names_seen(port, tmp_path / "public" / "ca.crt", "fl.example.org") == ["fl.example.org"]
        assert names_seen(port, tmp_path / "own" / "ca.crt", "localhost") == ["localhost"]
        with pytest.raises(ssl.SSLCertVerificationError):  # a site does not trust what the server made for itself
            names_seen(port, tmp_path / "public" / "ca.crt", "localhost")
    finally:
        thread.join(30)
        listener.close()
