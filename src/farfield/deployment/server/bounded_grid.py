"""Flower's Grid with a bound on every reply: it says how large a reply may be, and reports one that was larger.

The bound goes to the gate with the message. The gate lets no more than that in, and measures a reply before this
process reads it. What is refused there comes back here as an error of that site's node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Error, Message, Metadata
from flwr.serverapp import Grid

from farfield.deployment.flower import request_headers
from farfield.deployment.flower.private_parts import find
from farfield.deployment.flower.request_headers import OwnRequests

#: Bytes of a reply besides tensors and answers: its header and Flower's own records.
HEADER_BYTES = 64 * 1024
#: The code of an error in place of a reply: Flower's for a reply that is not available.
UNAVAILABLE = 4


class BoundedGrid:
    """The part of a Grid that a server uses. `expect` comes before the messages whose replies it bounds."""

    def __init__(self, grid: Grid, own: OwnRequests) -> None:
        self._grid, self._own = grid, own

    def expect(self, tensors: int, rest: int) -> None:
        """Allow so many bytes of tensors, and of everything else, in the replies to what is sent next."""
        self._own.limit = tensors, rest + HEADER_BYTES

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Return the replies that are there, one request for each: one that cannot be read costs no other."""
        import httpx

        waiting = set(message_ids)
        while waiting:
            handed: str | None = None
            try:
                yield from self._pulled(waiting)
                handed = self._own.take_handed()
            except httpx.HTTPError:
                raise
            except Exception as error:
                handed = self._own.take_handed()
                if handed is None:
                    raise
                yield _failed(handed, f"its reply cannot be read ({type(error).__name__})")
            for message in [message for message in self._own.refused if message in waiting]:
                yield _failed(message, f"its reply was refused: {self._own.refused.pop(message)}")
                waiting.discard(message)
            if handed is None:
                return
            waiting.discard(handed)

    def _pulled(self, waiting: set[str]) -> list[Message]:
        return list(self._grid.pull_messages(sorted(waiting)))


def bounded(grid: Grid) -> BoundedGrid:
    """Return the Grid of a ServerApp's process with its bounds."""
    assert request_headers.installed is not None, "farfield.deployment.flower.serverapp starts this process"
    return BoundedGrid(grid, request_headers.installed)


def expect_replies(grid: Any, tensors: int, rest: int) -> None:
    """Bound the replies to what is sent next, where the grid has a gate; in a simulation there is none."""
    expect = getattr(grid, "expect", None)
    if expect is not None:
        expect(tensors, rest)


def _failed(message: str, reason: str) -> Message:
    """Return an error in place of the reply to a message."""
    about = Metadata(
        run_id=0,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id=message,
        group_id="",
        created_at=0.0,
        ttl=1.0,
        message_type="query",
    )
    made: Message = find("flwr.app.message:make_message")(metadata=about, error=Error(UNAVAILABLE, reason))
    return made
