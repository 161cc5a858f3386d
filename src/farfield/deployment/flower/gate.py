"""A gate in front of Flower's SuperLink: who may request what at the server's only port.

Flower has no accounts without its commercial part: whoever reaches the port could register a key, or start a run with
their own code, which the server would execute. Behind the gate, sites reach the Fleet API, which knows them by their
keys. The Control API needs a secret that is stored at the server. The rest is for processes of this machine.

    python -P gate.py SECRET_FILE link …      # options as flower-superlink
    python -P gate.py SECRET_FILE flwr …      # options as flwr

It runs as a file and does not import farfield, because the command is started once for each site's key.
"""

from __future__ import annotations

import hmac
import importlib.util
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

FLEET, CONTROL = "/v1/fleet/", "/v1/control/"
#: Returns the kind of login, which is none. Flower's command requests it before it sends the secret.
LOGIN_DETAILS = "/v1/control/get-login-details"
#: Returns whether the sites' keys are registered: a site that connects earlier would be refused.
READY = "/farfield/ready"
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """ASGI middleware: 403 for a request that its sender may not make."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], secret: str, ready: Path, refused: Path
    ) -> None:
        self._app, self._secret, self._ready, self._refused = app, secret, ready, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == READY:
            here = self._ready.exists()
            await _answer(send, 200 if here else 503, "ready" if here else "the server is starting")
        elif scope["type"] == "lifespan" or (scope["type"] == "http" and may_pass(scope, self._secret)):
            await self._app(scope, receive, self._noting(scope, send))
        elif scope["type"] == "http":
            await _answer(send, 403, "this is for the server's operator alone")

    def _noting(self, scope: Scope, send: Send) -> Send:
        """Return `send`, which also notes the address of a site that is not let in, for the server's operator."""
        if scope["type"] != "http" or not str(scope["path"]).startswith(FLEET):
            return send

        async def noted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and _turned_away(str(scope["path"]), message["status"]):
                asking = scope.get("client") or ("unknown",)
                with suppress(OSError), open(self._refused, "a") as file:
                    file.write(f"{asking[0]}\n")
            await send(message)

        return noted


def _turned_away(path: str, status: int) -> bool:
    """Return whether an answer means that a node is not let in. Other errors concern nodes that are."""
    return status == 401 or (400 <= status < 500 and path.endswith("/activate-node"))


async def _answer(send: Send, status: int, text: str) -> None:
    body = json.dumps({"detail": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def may_pass(scope: Scope, secret: str) -> bool:
    """Return whether a request may pass."""
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
    """Return whether a request came by loopback, or from the same address that it went to."""
    asking, asked = scope.get("client"), scope.get("server")
    if not asking:
        return False
    try:
        address = ip_address(str(asking[0]))
        loopback = (getattr(address, "ipv4_mapped", None) or address).is_loopback  # a socket for IPv4 and IPv6 maps it
    except ValueError:
        return False
    return loopback or (asked is not None and str(asked[0]) == str(asking[0]))


def refused_file(secret_file: Path) -> Path:
    """Return the file with the addresses that were not let in, one per line."""
    return secret_file.with_name("refused-addresses")


def ready_file(secret_file: Path) -> Path:
    """Return the file that exists once the keys are registered."""
    return secret_file.with_name("ready")


def serve(secret_file: Path) -> None:
    """Run a SuperLink behind the gate."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    gate = Middleware(
        Gate, secret=secret_file.read_text(), ready=ready_file(secret_file), refused=refused_file(secret_file)
    )
    if not callable(getattr(extensions, "get_middleware", None)):  # else the gate would never be asked
        raise RuntimeError("this version of Flower has no 'get_middleware' to put the gate in by")
    extensions.get_middleware = lambda: (gate,)
    _load_neighbour("superlink").write_less_to_disk()
    _load_neighbour("listening").listen_as_told()
    flower_superlink()


def _load_neighbour(name: str) -> Any:
    """Import a module of this folder without importing farfield, which takes seconds."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"farfield_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(secret: str) -> None:
    """Run Flower's command, with the secret in every request."""
    from flwr.cli.app import app
    from flwr.cli.auth_plugin import NoOpCliAuthPlugin
    from flwr.common.constant import ACCESS_TOKEN_KEY

    def with_secret(self: object, metadata: Any) -> Any:
        return [*metadata, (ACCESS_TOKEN_KEY, secret)]

    NoOpCliAuthPlugin.write_tokens_to_metadata = with_secret  # type: ignore[method-assign]
    app()


def main() -> None:
    _, file, which, *arguments = sys.argv
    sys.argv = [which, *arguments]
    if which == "link":
        serve(Path(file))
    else:
        command(Path(file).read_text())


if __name__ == "__main__":
    main()
