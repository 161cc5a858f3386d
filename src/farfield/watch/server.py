"""The web server of the live view, on the standard library: five addresses, GET and HEAD, nothing else.

The standard library is enough: one reader, a page and a state of some kilobytes. The page asks for the state again and
again (with an ETag, so that an unchanged state is not sent), and so survives a restart of the server by itself.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from farfield.errors import UserError
from farfield.watch.folder_view import FolderView

LOOPBACK = "127.0.0.1"
#: Tried one after the other when no port is given, so that a restart finds the same one.
PORTS = range(8017, 8037)
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
}
STATE, REPORT = "/state", "/report.html"
#: The page may load its own script and style and ask its own server. The report is one file with all in it.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class WatchServer(ThreadingHTTPServer):
    """Serves the live view of one folder."""

    daemon_threads = True
    block_on_close = False  # a page that is open must not keep Ctrl-C waiting

    def __init__(self, folder: Path, host: str = LOOPBACK, port: int | None = None) -> None:
        self.host = host
        self.view = FolderView(folder)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._bind_first(PORTS if port is None else (port,))

    def _bind_first(self, ports: range | tuple[int]) -> None:
        for port in ports:
            try:
                super().__init__((self.host, port), _Handler)
                return
            except OSError as error:
                problem = error
            except OverflowError:
                raise UserError(f"{port} is not a valid port; choose one from 0 to 65535") from None
        tried = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"
        raise UserError(f"cannot listen on {self.host}, {tried}: {problem.strerror}; choose another --port or --host")

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        shown = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return f"http://[{shown}]:{self.port}/" if ":" in shown else f"http://{shown}:{self.port}/"

    def knows(self, header: str | None) -> bool:
        """Return whether a Host header names this server.

        A page elsewhere can give its own name this machine's address (DNS rebinding) and read what is here; its
        requests carry that name. On loopback only loopback names are right; else any address, and this host's names.
        """
        try:
            parts = urlsplit(f"//{header or ''}")
            name, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            return False
        if (port if port is not None else 80) != self.port or parts.path or parts.username is not None:
            return False
        if is_loopback(name):
            return True
        if is_loopback(self.host):
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}

    def server_bind(self) -> None:
        """Bind without looking this machine's name up, which can take seconds where there is no DNS."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Print an error to stderr; a reader that goes away in the middle of an answer is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "farfield-watch", ""
    timeout = 30.0

    def do_GET(self) -> None:
        if not self.server.knows(self.headers.get("Host")):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"unknown host name; use the address that was printed\n")
            return
        path = self.path.partition("?")[0]
        if path in PAGE:
            name, kind = PAGE[path]
            self._send(HTTPStatus.OK, (files("farfield.watch") / "page" / name).read_bytes(), kind, PAGE_POLICY)
        elif path == STATE:
            self._send(HTTPStatus.OK, self.server.view.state(), "application/json")
        elif path == REPORT:
            self._send_report()
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is nothing here\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send_report(self) -> None:
        found = self.server.view.report()
        try:
            content = None if found is None else found.read_bytes()
        except OSError:
            content = None
        if content is None:
            self._send(HTTPStatus.NOT_FOUND, b"the report is here when the bench has ended\n")
        else:
            self._send(HTTPStatus.OK, content, "text/html; charset=utf-8", REPORT_POLICY)

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", policy: str = "") -> None:
        tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        if status == HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            status, body = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", policy or "default-src 'none'; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Connection", "close")  # no thread waits for a page that may never ask again
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and body:
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Write no line per request to the terminal."""
