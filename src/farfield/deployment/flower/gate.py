"""A gate in front of Flower's SuperLink: who may request what at the server's only port, and how much of it.

Flower has no accounts without its commercial part: whoever reaches the port could register a key, or start a run with
their own code, which the server would execute. Behind the gate, sites reach the Fleet API, which knows them by their
keys. Everything else needs a secret of this start, which only the server's user can read.

Every body is read here, up to a limit, before Flower sees it. Without a known key the limit is a few kilobytes. With
one, it is what `Uploads` says: the declared size of the reply that the server waits for.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from .bounded_body import Gone, Receive, Scope, Send, TooLarge, TooSlow, read_body, replayed
from .node_signatures import NodeSignatures
from .private_parts import find
from .request_headers import HANDED_HEADER, LIMIT_HEADER, REFUSED_HEADER, SECRET_HEADER
from .uploads import BadReply, Limit, Uploads

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
#: Returns whether the sites' keys are registered: a site that connects earlier would be refused.
READY = "/farfield/ready"
#: The most bytes of a request: of one by a stranger, or about nothing large; of the announcement of a reply.
SMALL, ANNOUNCEMENT = 16 * 1024, 128 * 1024
#: What a reply may have if the ServerApp does not say it: the answer to a question about the site.
ANSWER = Limit(0, 10_000_000 + 64 * 1024)
#: Seconds for which the node of a key is remembered. Flower itself asks its database again.
REMEMBER_KEY = 30.0

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """ASGI middleware: 403 for a request that its sender may not make, 413 for one that is too large."""

    def __init__(self, app: App, secret: str, ready: Path, refused: Path) -> None:
        self._app, self._secret, self._ready, self._refused = app, secret, ready, refused
        self._uploads, self._signatures = Uploads(), NodeSignatures()
        self._nodes: dict[bytes, tuple[float, int | None]] = {}
        #: Held while Flower takes an announcement or hands a reply over: else it could hand over one that was announced
        #: in between, and the ServerApp would wait for its content.
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            try:
                await self._request(scope, receive, send)
            except TooLarge:
                await answer(send, 413, "this is larger than the server expects")
            except TooSlow:
                await answer(send, 408, "this takes too long to arrive")
            except Gone:
                return

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        if path == READY:
            here = self._ready.exists()
            await answer(send, 200 if here else 503, "ready" if here else "the server is starting")
        elif path.startswith(FLEET):
            await self._fleet(path, scope, receive, self._noting(scope, send))
        elif not may_pass(scope, self._secret):
            await answer(send, 403, "this is for the server's operator alone")
        elif path == f"{RUNTIME}push-messages":
            await self._messages_sent(scope, receive, send)
        elif path == f"{RUNTIME}pull-messages":
            await self._replies_read(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    # The sites.

    async def _fleet(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        node = None
        if path in (f"{FLEET}push-object", f"{FLEET}push-messages"):
            node = await asyncio.to_thread(self._signatures.node_of, scope["headers"], self._node_of_key(scope))
        if node is not None and path == f"{FLEET}push-object":
            await self._object_sent(node, scope, receive, send)
        elif node is not None and path == f"{FLEET}push-messages":
            await self._reply_announced(node, scope, receive, send)
        else:
            body = await read_body(scope, receive, SMALL)
            await self._app(scope, replayed(body, receive), send)

    def _node_of_key(self, scope: Scope) -> Callable[[bytes], int | None]:
        def node_of_key(key: bytes) -> int | None:
            known = self._nodes.get(key)
            if known is None or time.monotonic() - known[0] > REMEMBER_KEY:
                known = time.monotonic(), _state(scope).get_node_id_by_public_key(key)
                if known[1] is not None:  # else a stranger with many keys would fill the memory
                    self._nodes[key] = known
            return known[1]

        return node_of_key

    async def _reply_announced(self, node: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the tree of an announced reply, and let its objects come if Flower accepts it."""
        body = await read_body(scope, receive, ANNOUNCEMENT)
        request, store = _parsed("flwr.proto.fleet_pb2:PushMessagesRequest", body), _store(scope)
        if request is None or len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            await answer(send, 400, "one reply at a time")
            return
        about, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        message, reply = about.reply_to_message_id, about.message_id
        try:
            expected = self._uploads.check_announced(node, message, reply, tree, store)
        except BadReply as problem:
            await answer(send, 413, f"the reply is refused: {problem}")
            return
        async with self._one_at_a_time:
            answered = await self._answer_of_flower(scope, body, receive)
            accepted = _parsed("flwr.proto.fleet_pb2:PushMessagesResponse", _good_body(answered))
            if expected is not None and accepted is not None and accepted.objects_to_push:
                self._uploads.accept(message, reply, tree, store)
        for part in answered:
            await send(part)

    async def _answer_of_flower(self, scope: Scope, body: bytes, receive: Receive) -> list[MutableMapping[str, Any]]:
        """Return Flower's answer without sending it: a receiver that does not take it must not hold others up."""
        answered: list[MutableMapping[str, Any]] = []

        async def keep(message: MutableMapping[str, Any]) -> None:
            answered.append(message)

        await self._app(scope, replayed(body, receive), keep)
        return answered

    async def _object_sent(self, node: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an object of an announced reply in, as far as the node may still send that much."""
        store, counted = _store(scope), 0

        def count(size: int) -> None:
            nonlocal counted
            try:
                self._uploads.take(node, size, store)
            except BadReply:
                raise TooLarge from None
            counted += size

        kept = False
        try:
            body = await read_body(scope, receive, self._uploads.left(node), count)
            answered = await self._answer_of_flower(scope, body, receive)
            stored = _parsed("flwr.proto.message_pb2:PushObjectResponse", _good_body(answered))
            kept = stored is not None and stored.stored
        except TooLarge:
            self._uploads.refuse_upload(node, store)
            raise
        finally:
            if not kept:
                self._uploads.give_back(node, counted)
        for part in answered:
            await send(part)

    # The server's own processes.

    async def _messages_sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note how large the replies to the ServerApp's messages may be."""
        body = await read_body(scope, receive, _UNLIMITED)
        request = _parsed("flwr.proto.runtime_pb2:PushAppMessagesRequest", body)
        limit = _limit(scope)
        for message in request.messages_list if request is not None else ():
            self._uploads.expect(message.metadata.message_id, message.metadata.dst_node_id, limit)
        await self._app(scope, replayed(body, receive), send)

    async def _replies_read(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the ServerApp a reply that is complete and not too large, and tell it which ones were refused."""
        body = await read_body(scope, receive, _UNLIMITED)
        request = _parsed("flwr.proto.runtime_pb2:PullAppMessagesRequest", body)
        if request is None:
            await self._app(scope, replayed(body, receive), send)
            return
        wanted = list(request.message_ids)
        async with self._one_at_a_time:
            asked, handed = self._uploads.readable(wanted, _store(scope))
            refused = self._uploads.take_refused(wanted)
            del request.message_ids[:]
            request.message_ids.extend(asked)
            body = request.SerializeToString()
            length = [(b"content-length", str(len(body)).encode())]
            headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
            answered = await self._answer_of_flower({**scope, "headers": headers + length}, body, receive)
        told = [(REFUSED_HEADER.encode(), json.dumps(refused).encode())] if refused else []
        told += [(HANDED_HEADER.encode(), handed.encode())] if handed else []
        for part in answered:
            if part["type"] == "http.response.start":
                part = {**part, "headers": [*part.get("headers", []), *told]}
            await send(part)

    def _noting(self, scope: Scope, send: Send) -> Send:
        """Return `send`, which also notes the address of a site that is not let in, for the server's operator."""

        async def noted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and _turned_away(str(scope["path"]), message["status"]):
                asking = scope.get("client") or ("unknown",)
                with suppress(OSError), open(self._refused, "a") as file:
                    file.write(f"{asking[0]}\n")
            await send(message)

        return noted


#: For the server's own processes, which have shown the secret: they send what the server itself made.
_UNLIMITED = 1 << 62


def _state(scope: Scope) -> Any:
    return scope["app"].state.linkstate_factory.state()


def _store(scope: Scope) -> Any:
    return _state(scope).object_store


def _parsed(kind: str, body: bytes) -> Any:
    """Return a protobuf message; None if the bytes are none. Flower then says so itself."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    message = find(kind)()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    return message


def _limit(scope: Scope) -> Limit:
    given = [value for name, value in scope["headers"] if name.lower() == LIMIT_HEADER.encode()]
    if not given:
        return ANSWER
    tensors, _, rest = given[0].partition(b",")
    return Limit(int(tensors), int(rest))


def _good_body(answered: list[MutableMapping[str, Any]]) -> bytes:
    """Return the body of a successful answer; of another one, bytes that are no message."""
    good = bool(answered) and 200 <= answered[0].get("status", 0) < 300
    return b"".join(part.get("body", b"") for part in answered) if good else b"\xff"


def _turned_away(path: str, status: int) -> bool:
    """Return whether an answer means that a node is not let in. Other errors concern nodes that are."""
    return status == 401 or (400 <= status < 500 and path.endswith("/activate-node"))


async def answer(send: Send, status: int, text: str) -> None:
    """Answer without Flower. A refusal also ends the connection, so that the rest of a body is not waited for."""
    body = json.dumps({"detail": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status >= 400:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def may_pass(scope: Scope, secret: str) -> bool:
    """Return whether a request is from a process of the server's user on this machine."""
    given = [value for name, value in scope["headers"] if name.lower() == SECRET_HEADER.encode()]
    shown = len(given) == 1 and hmac.compare_digest(given[0], secret.encode())
    return shown and from_this_machine(scope)


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
