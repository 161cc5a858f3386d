"""A server on a free port of this machine, in a thread, and a client that says what it likes."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farfield.watch import folder_view
from farfield.watch.server import WatchServer


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[WatchServer]:
    with WatchServer(folder, port=port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    port: int, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def state_of(folder: Path) -> dict[str, Any]:
    """The state of a folder as a server that has just been started sees it."""
    return dict(json.loads(folder_view.FolderView(folder).state()))
