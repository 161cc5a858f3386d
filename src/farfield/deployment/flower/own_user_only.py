"""Keep other users of a machine out of a port on loopback: only requests with a secret of this user pass.

A site's SuperNode listens on loopback for the process with the rows. Flower asks that process for tokens, but reads
whole requests before it does so, from whoever sends them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from .bounded_body import Receive, Scope, Send
from .gate import App, answer, may_pass


def secret_in(file: Path) -> str:
    """Return the secret that requests show, derived from a file that only this user can read."""
    return hashlib.sha256(b"farfield requests" + file.read_bytes()).hexdigest()


class OwnUserOnly:
    """ASGI middleware: 403 for a request without the secret. Its body is not read."""

    def __init__(self, app: App, secret: str) -> None:
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and may_pass(scope, self._secret)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await answer(send, 403, "this is for the site's own processes")


def keep_others_out(secret: str) -> None:
    """Put this in front of the SuperNode that this process will start."""
    from .private_parts import find, replace

    make: Any = find("flwr.supernode.main:create_app")
    replace("flwr.supernode.main:create_app", lambda **given: OwnUserOnly(make(**given), secret))
