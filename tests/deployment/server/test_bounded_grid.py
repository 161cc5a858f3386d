"""A ServerApp's Grid: replies that the gate refused, and a reply that cannot be read, are one site's problem."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from flwr.app import Message

from farfield.deployment.flower.request_headers import OwnRequests
from farfield.deployment.server.bounded_grid import HEADER_BYTES, BoundedGrid, expect_replies
from farfield.deployment.server.declared_size import most_bytes
from farfield.federation.phase import Free, Sends
from farfield.federation.reply_checks import MAX_BYTES


class Grid:
    """Stands for Flower's Grid behind a gate: the gate hands over one reply per request."""

    def __init__(self, own: OwnRequests, replies: dict[str, Any]) -> None:
        self._own, self.replies = own, replies

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        for message in message_ids:
            if message in self.replies:
                self._own.handed = message
                reply = self.replies.pop(message)
                if isinstance(reply, Exception):
                    raise reply
                return [reply]
        return []


def reply(to: str) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=to), has_error=lambda: False)


def pulled(grid: BoundedGrid, *messages: str) -> dict[str, str]:
    found: list[Message] = list(grid.pull_messages(messages))
    return {r.metadata.reply_to_message_id: (r.error.reason if r.has_error() else "") for r in found}


def test_a_reply_that_cannot_be_read_costs_no_other() -> None:
    own = OwnRequests("secret")
    grid: Any = Grid(own, {"a": reply("a"), "b": KeyError("a child is missing"), "c": reply("c")})
    assert pulled(BoundedGrid(grid, own), "a", "b", "c", "d") == {
        "a": "",
        "b": "its reply cannot be read (KeyError)",
        "c": "",
    }


def test_refused_replies_are_reported_once_and_only_if_waited_for() -> None:
    own = OwnRequests("secret")
    own.refused = {"a": "it is too large", "old": "it is too large"}
    grid: Any = Grid(own, {"b": reply("b")})
    bounded = BoundedGrid(grid, own)
    assert pulled(bounded, "a", "b") == {"a": "its reply was refused: it is too large", "b": ""}
    assert pulled(bounded, "a", "b") == {}


@pytest.mark.parametrize("error", [httpx.ConnectError("gone"), ValueError("not about a reply")])
def test_other_failures_are_not_taken_for_a_sites(error: Exception) -> None:
    own = OwnRequests("secret")

    def fails(message_ids: Iterable[str]) -> Iterable[Any]:
        raise error

    with pytest.raises(type(error)):
        pulled(BoundedGrid(SimpleNamespace(pull_messages=fails), own), "a")  # type: ignore[arg-type]


def test_the_bound_goes_with_the_messages_and_with_nothing_else() -> None:
    own = OwnRequests("secret")
    expect_replies(BoundedGrid(SimpleNamespace(), own), 100, 20)  # type: ignore[arg-type]
    for method, limit in (("PushMessages", f"100,{20 + HEADER_BYTES}"), ("PushObject", None)):
        request = SimpleNamespace(headers={})
        context = SimpleNamespace(rpc_method=f"/flwr.proto.Runtime/{method}", request=request)
        own.intercept(context, lambda context: SimpleNamespace(headers={}))
        assert request.headers.get("x-farfield-reply-limit") == limit
        assert request.headers["x-farfield-secret"] == "secret"


def test_the_size_of_a_reply_is_what_its_phase_declares() -> None:
    layout: Any = SimpleNamespace(
        parameters=1000, head=slice(900, 1000), final=slice(950, 1000), buffers=0, features=9, outputs=10
    )
    sites: Any = [SimpleNamespace(schema=SimpleNamespace(rows=rows)) for rows in (50, 70)]
    absent: Any = [*sites, SimpleNamespace(schema=None)]
    assert torch.get_default_dtype() is torch.float32
    update, loss = Sends("parameters", "the update"), Sends((), "the loss")
    assert most_bytes({"update": update, "loss": loss}, layout, sites) == (4 * 1000 + 4 + 2 * 1024, 2 * 1024)
    labels = Sends((Free("tuning rows"),), "labels", integers=True)
    logits = Sends((Free("tuning rows"), Free("clients"), "outputs"), "logits")
    assert most_bytes({"labels": labels}, layout, sites)[0] == 8 * 70 + 2 * 1024
    assert most_bytes({"logits": logits}, layout, sites)[0] == 4 * 70 * 70 * 10 + 2 * 1024
    assert most_bytes({"labels": labels}, layout, absent)[0] == MAX_BYTES, "its rows are not known yet"
    assert most_bytes({"update": update}, layout, absent)[0] == 4000 + 3 * 1024
