"""Who may ask what at the server's one port, where Flower answers sites, its operator and its own processes alike.

Flower has no accounts without its commercial part: whoever reaches the port could register a key, or start a run with
code of their own, which the server would execute. So there is a gate in front. Sites get the Fleet API, which knows
them by their keys; the Control API wants a secret that lies at the server; the rest is for this machine's processes.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

FLEET, CONTROL = "/v1/fleet/", "/v1/control/"
#: Says which kind of login there is, which is none. Flower's command asks it before it sends the secret.
LOGIN_DETAILS = "/v1/control/get-login-details"
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """ASGI middleware: 403 for whoever asks for what is not theirs."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], secret: str) -> None:
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and opens(scope, self._secret)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            body = json.dumps({"detail": "this is for the server's operator alone"}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})


def opens(scope: Scope, secret: str) -> bool:
    """Whether this request may pass."""
    path = str(scope["path"])
    if path.startswith(FLEET):
        return True
    if not from_this_machine(scope):
        return False
    if not path.startswith(CONTROL) or path == LOGIN_DETAILS:
        return True
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    return len(given) == 1 and hmac.compare_digest(given[0], f"Bearer {secret}".encode())


def from_this_machine(scope: Scope) -> bool:
    """Whether it came by loopback, or from the very address that it went to."""
    asking, asked = scope.get("client"), scope.get("server")
    if not asking:
        return False
    try:
        loopback = ip_address(str(asking[0])).is_loopback
    except ValueError:
        return False
    return loopback or (asked is not None and str(asked[0]) == str(asking[0]))
