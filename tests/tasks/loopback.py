"""A web server on this machine that serves bytes with ranges, and fails in the ways that servers do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """Files by path, and what was asked for. `cut` ends an answer after so many bytes; `refuse` answers with a code."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.cut: list[int] = []
        self.refuse: list[int] = []
        self.ranges = True
        self.url = ""

    def tag(self, path: str) -> str:
        return f'"{hash(self.files[path]) & 0xFFFFFFFF:x}"'

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, wanted = handler.path, handler.headers.get("Range")
        self.asked.append((path, wanted))
        if self.refuse:
            return handler.send_error(self.refuse.pop(0))
        if path not in self.files:
            return handler.send_error(404)
        content, start = self.files[path], 0
        unchanged = handler.headers.get("If-Range") in (None, self.tag(path))
        if wanted and self.ranges and unchanged:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{len(content)}")
                handler.send_header("Content-Length", "0")
                return handler.end_headers()
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            handler.send_response(200)
        body = content[start:]
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("ETag", self.tag(path))
        handler.end_headers()
        if self.cut:
            body = body[: self.cut.pop(0)]
            handler.close_connection = True
        handler.wfile.write(body)


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
