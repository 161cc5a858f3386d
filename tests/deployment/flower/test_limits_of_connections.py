"""Connections, headers and bodies that take too long or are too long, on a real web server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from farfield.deployment.credentials.create import make_authority, make_server_certificate
from farfield.deployment.flower import bounded_body, hurried_protocol
from farfield.deployment.flower.bounded_body import Gone, TooLarge, TooSlow, read_body


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer a GET, and refuse a POST without reading it, as the gate does."""
    if scope["type"] == "http":
        status, more = (200, []) if scope["method"] == "GET" else (413, [(b"connection", b"close")])
        headers = [(b"content-length", b"2"), *more]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    yield from serving(monkeypatch)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_authority(tmp_path, 2)
    make_server_certificate(tmp_path, ["127.0.0.1"], 2)
    return tmp_path


@pytest.fixture
def tls_port(monkeypatch: pytest.MonkeyPatch, certificates: Path) -> Iterator[int]:
    yield from serving(
        monkeypatch, ssl_certfile=certificates / "server.crt", ssl_keyfile=str(certificates / "server.key")
    )


def serving(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.3, **tls: Any) -> Iterator[int]:
    monkeypatch.setattr(hurried_protocol, "HEADER_SECONDS", seconds)
    protocol: Any = hurried_protocol.hurried_protocol()
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_level="critical", **tls)
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    yield int(listening.getsockname()[1])
    server.should_exit = True
    thread.join(30)
    listening.close()


def talk(port: int, *parts: bytes) -> bytes:
    """Send these parts and return everything that comes until the server hangs up."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            while got := connection.recv(65536):
                heard += got
        except ConnectionError:
            pass
    return heard


REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n"


def test_a_whole_request_is_answered(port: int) -> None:
    assert talk(port, REQUEST, b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("parts", [(), (REQUEST,), (b"G",)])
def test_headers_that_do_not_come_end_the_connection(port: int, parts: tuple[bytes, ...]) -> None:
    assert talk(port, *parts) == b""


def test_half_of_a_second_request_ends_the_connection_too(port: int) -> None:
    assert talk(port, REQUEST + b"\r\n", REQUEST).count(b"HTTP/1.1 200") == 1


def test_headers_without_end_are_cut(port: int) -> None:
    assert b"200" not in talk(port, REQUEST + b"x-long: ", *[b"a" * 65536] * 200)


@pytest.mark.parametrize("length", [b"Content-Length: 2000000000", b"Transfer-Encoding: chunked"])
def test_the_rest_of_a_refused_body_is_not_taken_over_tls(tls_port: int, certificates: Path, length: bytes) -> None:
    context = ssl.create_default_context(cafile=certificates / "ca.crt")
    part, sent = b"10000\r\n" + b"x" * 65536 + b"\r\n", 0
    with (
        socket.create_connection(("127.0.0.1", tls_port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        contextlib.suppress(OSError),
    ):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: here\r\n" + length + b"\r\n\r\n")
        while sent < 1_000_000_000:
            connection.sendall(part)
            sent += len(part)
    assert sent < 1_000_000_000, "the server took all of it"


def from_address(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(address, 0))


def answered(port: int, address: str) -> bool:
    """Whether a request from this address has an answer."""
    with from_address(port, address) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(REQUEST + b"Connection: close\r\n\r\n")
        return connection.recv(65536).startswith(b"HTTP/1.1 200")
    return False


def test_an_address_that_holds_its_share_is_kept_out_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hurried_protocol, "MOST_OF_ONE_ADDRESS", 3)
    monkeypatch.setattr(hurried_protocol, "counted_address", lambda peer: str(peer[0]))  # else loopback is not counted
    for port in serving(monkeypatch, seconds=60.0):
        with contextlib.ExitStack() as held:
            slow = [held.enter_context(from_address(port, "127.0.0.2")) for _ in range(3)]
            for connection in slow:
                connection.sendall(b"GET")
            assert not answered(port, "127.0.0.2")
            assert answered(port, "127.0.0.3")
            slow[0].close()
            until = time.monotonic() + 60
            while not answered(port, "127.0.0.2"):
                assert time.monotonic() < until, "a connection that has ended still counts"


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        (("192.0.2.7", 5), "192.0.2.7"),
        (("::ffff:192.0.2.7", 5, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
        (("127.0.0.1", 5), None),
        (("::ffff:127.0.0.1", 5, 0, 0), None),
        (("::1", 5, 0, 0), None),
        (None, "unknown"),
        ("", "unknown"),
    ],
)
def test_connections_are_counted_by_who_can_have_many_addresses(peer: Any, counted: str | None) -> None:
    assert hurried_protocol.counted_address(peer) == counted


def test_the_superlink_can_have_as_many_connections_as_it_allows() -> None:
    command = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 3000));"
        "from farfield.deployment.flower.hurried_protocol import ask_for_open_files; ask_for_open_files();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(3000, 3000)"


def receiving(*parts: bytes, forever: bool = False) -> Any:
    left = list(parts)

    async def receive() -> dict[str, Any]:
        if not left:
            if forever:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    return receive


def test_a_body_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_body, "BODY_SECONDS", 0.05)
    with pytest.raises(TooSlow):
        asyncio.run(read_body({"headers": []}, receiving(b"x", forever=True), 100))
    with pytest.raises(Gone):
        asyncio.run(read_body({"headers": []}, receiving(b"x"), 100))


@pytest.mark.parametrize("length", [b"101", b"-1", b"1e3", b"", b"9" * 100])
def test_a_length_that_is_none_is_refused(length: bytes) -> None:
    with pytest.raises(TooLarge):
        asyncio.run(read_body({"headers": [(b"Content-Length", length)]}, receiving(b"x"), 100))
