"""Who gets past the gate of a server's port, and how much gets past it."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message

from farfield.deployment.flower.gate import ANNOUNCEMENT, SMALL, Gate
from farfield.deployment.flower.own_user_only import OwnUserOnly
from farfield.deployment.flower.uploads import Limit

SECRET = "0123456789abcdef"
SHOWN = [(b"x-farfield-secret", SECRET.encode())]
HERE, SITE, LAN = "127.0.0.1", "192.0.2.7", "198.51.100.1"
Headers = list[tuple[bytes, bytes]]


class Server:
    """A gate in front of something that answers for Flower, and notes what it was given."""

    def __init__(self, folder: Path = Path("nowhere"), flowers: int = 200, answer: bytes = b"") -> None:
        self.flowers, self.answer, self.received = flowers, answer, list[bytes]()
        self.store = ObjectStoreFactory().store()
        self.keys: dict[bytes, int] = {}
        state = SimpleNamespace(object_store=self.store, get_node_id_by_public_key=lambda key: self.keys.get(key))
        self.app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: state)))
        self.gate: Any = Gate(self._flower, SECRET, folder / "ready", folder / "refused")
        self.answered: dict[bytes, bytes] = {}
        self.read = 0

    async def _flower(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.received.append(body)
        await send({"type": "http.response.start", "status": self.flowers, "headers": []})
        await send({"type": "http.response.body", "body": self.answer})

    def status(
        self, path: str, client: str | None = SITE, headers: Headers | None = None, body: Iterable[bytes] = (b"",)
    ) -> int:
        return self.ask("http", path, client, headers, body)

    def ask(
        self, kind: str, path: str, client: str | None, headers: Headers | None = None, body: Iterable[bytes] = (b"",)
    ) -> int:
        """Return what is answered; 0 for no answer."""
        sent: list[dict[str, Any]] = []
        parts, self.read = iter(body), 0

        async def receive() -> dict[str, Any]:
            part = next(parts, None)
            self.read += len(part or b"")
            return {"type": "http.request", "body": part or b"", "more_body": part is not None}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        asking = None if client is None else (client, 50000)
        scope = {"type": kind, "path": path, "client": asking, "server": (LAN, 9443), "headers": headers or []}
        asyncio.run(self.gate({**scope, "app": self.app}, receive, send))
        self.answered = dict(sent[0]["headers"]) if sent else {}
        return int(sent[0]["status"]) if sent else 0


def signed(server: Server, node: int | None) -> Headers:
    """Headers of a node's request; with None, of a key that is not registered."""
    private, public = generate_key_pairs()
    if node is not None:
        server.keys[public_key_to_bytes(public)] = node
    stamp = datetime.datetime.now(datetime.UTC).isoformat().encode()
    return [
        (b"flwr-public-key", base64.b64encode(public_key_to_bytes(public))),
        (b"flwr-timestamp", stamp),
        (b"flwr-signature", base64.b64encode(sign_message(private, stamp))),
    ]


def pieces(size: int) -> Iterable[bytes]:
    return (b"\0" * 65536 for _ in range(size // 65536))


@pytest.mark.parametrize("client", [HERE, SITE, LAN])
def test_sites_reach_what_is_theirs(client: str) -> None:
    assert Server().status("/v1/fleet/pull-messages", client) == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/register-node",
        "/v1/control/get-login-details",
        "/v1/runtime/get-nodes",
        "/v1/runtime/acquire-task",
        "/docs",
        "/openapi.json",
        "/",
        "//v1/fleet/x",
        "/v1/fleet",
        "/V1/fleet/x",
    ],
)
def test_the_rest_wants_the_secret_and_this_machine(path: str) -> None:
    server = Server()
    assert server.status(path, HERE, SHOWN) == 200
    assert server.status(path, LAN, SHOWN) == 200, "the server's own processes use its address"
    assert len(server.received) == 2
    for client, headers in (
        (HERE, []),
        (HERE, [(b"x-farfield-secret", b"something")]),
        (HERE, [(b"authorization", f"Bearer {SECRET}".encode())]),
        (HERE, SHOWN * 2),
        (HERE, [(b"flwr-task-token", b"0" * 64)]),
        (SITE, SHOWN),
        (SITE, [*SHOWN, (b"x-forwarded-for", b"127.0.0.1")]),
        (None, SHOWN),
    ):
        assert server.status(path, client, headers, pieces(1 << 20)) == 403
        assert server.answered[b"connection"] == b"close"
        assert server.read == 0, "a refused request is not read"
    assert len(server.received) == 2


def test_other_protocols_are_not_let_through() -> None:
    assert Server().ask("websocket", "/v1/fleet/x", HERE, SHOWN) == 0


def test_a_site_can_ask_whether_its_key_is_registered_yet(tmp_path: Path) -> None:
    assert Server(tmp_path).status("/farfield/ready") == 503
    (tmp_path / "ready").touch()
    assert Server(tmp_path).status("/farfield/ready") == 200


def test_who_is_not_let_in_by_flower_is_noted_for_the_operator(tmp_path: Path) -> None:
    file = tmp_path / "refused"
    assert Server(tmp_path).status("/v1/fleet/activate") == 200
    assert Server(tmp_path, 404).status("/v1/runtime/pull-task", HERE, SHOWN) == 404
    assert Server(tmp_path, 403).status("/v1/fleet/push-messages") == 403, "of a run that has ended"
    assert not file.exists(), "only sites are, and only those that were turned away"
    assert Server(tmp_path, 401).status("/v1/fleet/pull-messages") == 401
    assert Server(tmp_path, 412).status("/v1/fleet/activate-node") == 412
    assert file.read_text() == f"{SITE}\n" * 2
    assert Server(tmp_path / "none", 401).status("/v1/fleet/activate") == 401


@pytest.mark.parametrize("path", ["/v1/fleet/activate-node", "/v1/fleet/push-object", "/v1/fleet/push-messages"])
def test_strangers_send_a_few_kilobytes_at_most(path: str) -> None:
    server = Server()
    forged = signed(server, 7)[:2] + signed(server, None)[2:]
    old = [(name, b"2020-01-01T00:00:00+00:00" if b"time" in name else value) for name, value in signed(server, 7)]
    for headers in ([], signed(server, None), forged, old, [(b"flwr-public-key", b"\xff")]):
        assert server.status(path, headers=headers, body=[b"x" * SMALL]) == 200
        assert server.status(path, headers=headers, body=pieces(1 << 24)) == 413
        assert server.read <= SMALL + 65536, "reading ends at the limit"
        length = [*headers, (b"content-length", b"1500000000")]
        assert server.status(path, headers=length, body=pieces(1 << 24)) == 413
        assert server.read == 0, "what declares too much is not read at all"
        assert server.status(path, headers=[*headers, (b"content-length", b"9" * 5000)]) == 413


MODEL = Limit(3_000_000, 10_000)


class Round:
    """A message of the server's to node 7, and the node's reply: one record with pieces of a tensor."""

    def __init__(self, limit: Limit = MODEL) -> None:
        self.server = Server()
        self.key = signed(self.server, 7)
        told = PushAppMessagesRequest(messages_list=[Message(metadata=Metadata(message_id="asked", dst_node_id=7))])
        header = [*SHOWN, (b"x-farfield-reply-limit", "{},{}".format(*limit).encode())]
        assert self.server.status("/v1/runtime/push-messages", HERE, header, [told.SerializeToString()]) == 200

    def announce(self, contents: list[bytes], key: Headers | None = None, tree: ObjectTree | None = None) -> int:
        from flwr.supercore.inflatable.inflatable_object import get_object_id

        names = [get_object_id(content) for content in contents]
        tree = tree or ObjectTree(object_id=names[0], children=[ObjectTree(object_id=name) for name in names[1:]])
        about = Metadata(message_id=tree.object_id, reply_to_message_id="asked", src_node_id=7)
        request = PushMessagesRequest(messages_list=[Message(metadata=about)], message_object_trees=[tree])
        self.server.answer = PushMessagesResponse(objects_to_push=names).SerializeToString()
        status = self.server.status("/v1/fleet/push-messages", SITE, key or self.key, [request.SerializeToString()])
        if status == 200:
            self.server.store.preregister(1, tree)
        return status

    def upload(self, content: bytes, stored: bool = True, extra: int = 0) -> int:
        from flwr.supercore.inflatable.inflatable_object import get_object_id

        self.server.answer = PushObjectResponse(stored=stored).SerializeToString()
        parts = [content[start : start + 65536] for start in range(0, len(content), 65536)]
        status = self.server.status("/v1/fleet/push-object", SITE, self.key, [*parts, b"\0" * extra])
        if status == 200 and stored:
            self.server.store.put(get_object_id(content), content)
        return status

    def pull(self) -> tuple[list[str], dict[str, str], str]:
        """Return what Flower is asked for on behalf of the ServerApp, and what the ServerApp is told."""
        request = PullAppMessagesRequest(message_ids=["asked"]).SerializeToString()
        assert self.server.status("/v1/runtime/pull-messages", HERE, SHOWN, [request]) == 200
        passed = PullAppMessagesRequest.FromString(self.server.received[-1])
        refused = json.loads(self.server.answered.get(b"x-farfield-refused", b"{}"))
        return list(passed.message_ids), refused, self.server.answered.get(b"x-farfield-handed", b"").decode()


def flower_object(kind: str, body: bytes, children: Iterable[str] = ()) -> bytes:
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def reply(sizes: Iterable[int], rest: int = 100) -> list[bytes]:
    """A root and pieces of a tensor, as Flower writes them."""
    chunks = [flower_object("ArrayChunk", bytes([number]) * size) for number, size in enumerate(sizes)]
    return [flower_object("Message", b"r" * rest), *chunks]


def test_an_honest_reply_is_handed_over_when_it_is_complete() -> None:
    exchange, parts = Round(), reply([2_000_000, 1_000_000])
    assert exchange.pull() == (["asked"], {}, ""), "before it is announced, Flower is asked"
    assert exchange.announce(parts) == 200
    for part in parts:
        assert exchange.pull() == ([], {}, ""), "while it arrives, the ServerApp would wait"
        assert exchange.upload(part) == 200
    assert exchange.pull() == (["asked"], {}, "asked")


def test_an_upload_that_is_larger_than_declared_is_cut_and_named() -> None:
    exchange, parts = Round(), reply([2_000_000, 200_000_000])
    assert exchange.announce(parts) == 200
    assert exchange.upload(parts[0]) == 200
    assert exchange.upload(parts[2]) == 413
    assert exchange.server.read < 4_000_000, "it is cut where the allowance ends"
    asked, refused, handed = exchange.pull()
    assert (asked, handed) == ([], "")
    assert "more than the 3010000 bytes that are allowed" in refused["asked"]
    assert exchange.pull()[1] == {}, "it is told once"
    assert len(exchange.server.store) == 0, "and nothing of it is kept"


def test_nothing_can_be_sent_without_an_announced_reply() -> None:
    exchange = Round()
    assert exchange.upload(b"x" * 100) == 413
    assert exchange.announce(reply([10]), key=signed(exchange.server, 8)) == 413, "it is another site's"
    assert exchange.upload(b"x" * 100) == 413


def test_the_same_piece_many_times_counts_as_many() -> None:
    exchange, parts = Round(), reply([1_000_000])
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    piece = ObjectTree(object_id=get_object_id(parts[1]))
    tree = ObjectTree(object_id=get_object_id(parts[0]), children=[piece] * 5)
    assert exchange.announce(parts, tree=tree) == 200
    assert [exchange.upload(part) for part in parts] == [200, 200]
    asked, refused, _ = exchange.pull()
    assert asked == []
    assert "bytes of tensors" in refused["asked"]


def test_a_header_cannot_be_as_large_as_a_tensor() -> None:
    exchange, parts = Round(), reply([1000], rest=500_000)
    assert exchange.announce(parts) == 200
    assert [exchange.upload(part) for part in parts] == [200, 200]
    assert "bytes of everything else" in exchange.pull()[1]["asked"]


def test_trees_that_stand_for_larger_ones_are_refused() -> None:
    name = "{:064x}".format
    deep = ObjectTree(object_id=name(20))
    for number in range(10):
        deep = ObjectTree(object_id=name(number), children=[deep])
    wide = ObjectTree(object_id=name(1), children=[ObjectTree(object_id=name(2 + n)) for n in range(500)])
    twice = ObjectTree(
        object_id=name(1),
        children=[
            ObjectTree(object_id=name(2), children=[ObjectTree(object_id=name(3))]),
            ObjectTree(object_id=name(2)),
        ],
    )
    for tree in (deep, wide, twice):
        exchange = Round()
        assert exchange.announce([b"x"], tree=tree) == 413
        assert "asked" in exchange.pull()[1]
    exchange = Round()
    exchange.server.store.preregister(1, twice.children[0])
    assert exchange.announce([b"x"], tree=ObjectTree(object_id=name(1), children=[twice.children[1]])) == 413


def test_what_flower_did_not_keep_can_be_sent_again() -> None:
    exchange, parts = Round(Limit(1_000_000, 10_000)), reply([1_000_000])
    assert exchange.announce(parts) == 200
    for _ in range(5):
        assert exchange.upload(parts[1], stored=False) == 200
    assert [exchange.upload(part) for part in parts] == [200, 200]
    assert exchange.pull()[2] == "asked"


def test_an_announcement_is_bounded_too() -> None:
    server = Server()
    assert server.status("/v1/fleet/push-messages", headers=signed(server, 7), body=pieces(1 << 24)) == 413
    assert server.read <= ANNOUNCEMENT + 65536
    assert server.status("/v1/fleet/push-messages", headers=signed(server, 7), body=[b"\xff\xff"]) == 400
    assert server.received == []


def test_a_sites_own_port_asks_for_the_secret_and_reads_nothing_without_it() -> None:
    server = Server()
    server.gate = OwnUserOnly(server._flower, SECRET)
    assert server.status("/v1/runtime/acquire-task", HERE, SHOWN) == 200
    assert server.status("/v1/runtime/acquire-task", HERE, body=pieces(1 << 20)) == 403
    assert server.read == 0
    assert server.status("/v1/runtime/acquire-task", SITE, SHOWN) == 403
