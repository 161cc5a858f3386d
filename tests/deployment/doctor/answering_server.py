"""A server on loopback that answers a doctor's request over TLS, with a clock that may be wrong."""

from __future__ import annotations

import contextlib
import email.utils
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextlib.contextmanager
def answering(certs: Path | None, *, status: int = 200, clock: float | None = 0.0) -> Iterator[int]:
    """Return the port. `clock` is how far the server's clock is ahead of this machine's; None if it tells no time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status if self.path == "/farfield/ready" else 404)
            if clock is not None:
                self.send_header("date", email.utils.formatdate(time.time() + clock, usegmt=True))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that does not trust this server hangs up."""

    server = Server(("127.0.0.1", 0), Handler)
    if certs is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs / "server.crt", certs / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
