"""A site waits for a server that is away, also behind a router that accepts connections for it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farfield.deployment.credentials.create import make_authority, make_server_certificate
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.site.supervise import ClientError, Credentials, check_server
from tests.deployment.doctor.answering_server import answering


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_authority(tmp_path / "certs", 2)
    make_server_certificate(tmp_path / "certs", ["127.0.0.1"], 2)
    return tmp_path / "certs"


def at(federation: FederationFile, port: int) -> FederationFile:
    return federation.model_copy(update={"server": f"127.0.0.1:{port}"})


@contextlib.contextmanager
def router(port: int, backend: list[int]) -> Iterator[int]:
    """A port that leads to a server once there is one, and until then ends every connection."""
    listener = socket.create_server(("127.0.0.1", port))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                outside, _ = listener.accept()
                if not backend:
                    outside.recv(10)
                    outside.close()
                    continue
                inside = socket.create_connection(("127.0.0.1", backend[0]))
                for pair in ((outside, inside), (inside, outside)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_site_waits_behind_a_router_until_its_server_is_there(certs: Path, federation: FederationFile) -> None:
    credentials, backend = Credentials(certs / "ca.crt", certs / "none"), list[int]()
    told: list[dict[str, Any]] = []
    with router(0, backend) as port, answering(certs) as server:
        with pytest.raises(ClientError, match="no server answers"):
            check_server(at(federation, port), credentials, 0.0)

        def arrive(row: dict[str, Any]) -> None:
            told.append(row)
            backend.append(server)

        check_server(at(federation, port), credentials, 60.0, show=arrive)
    assert [row["kind"] for row in told] == ["waiting"], "it says once that it waits"


def test_what_answers_without_tls_is_no_server_to_wait_for(certs: Path, federation: FederationFile) -> None:
    with answering(None) as port, pytest.raises(ClientError, match="does not speak TLS"):
        check_server(at(federation, port), Credentials(certs / "ca.crt", certs / "none"), 60.0)
