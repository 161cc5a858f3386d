"""A TLS server on loopback, for one greeting."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path


def greeting(server: Path, trusted: Path, host: str) -> str:
    """What a client that trusts this CA hears from a TLS server that it takes for `host`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        connection.settimeout(20)
        try:
            with context.wrap_socket(connection, server_side=True) as secured:
                secured.sendall(b"welcome")
        except (ssl.SSLError, OSError):
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        trusting = ssl.create_default_context(cafile=trusted)
        trusting.verify_flags |= ssl.VERIFY_X509_STRICT
        with (
            socket.create_connection(listening.getsockname(), timeout=20) as plain,
            trusting.wrap_socket(plain, server_hostname=host) as secured,
        ):
            return secured.recv(100).decode()
    finally:
        thread.join(30)
        listening.close()
