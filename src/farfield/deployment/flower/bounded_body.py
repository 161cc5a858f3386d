"""Read the body of a request up to a limit: more than that is never in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: A body must arrive within so many seconds, plus the time that it takes at this many bytes a second.
BODY_SECONDS, SLOWEST = 60.0, 16 * 1024


class TooLarge(Exception):
    """A body with more bytes than allowed."""


class TooSlow(Exception):
    """A body that does not arrive."""


class Gone(Exception):
    """The sender has left."""


def declared_length(scope: Scope) -> int:
    """Return the length that a request declares; 0 for one that comes in pieces. Raises TooLarge if it is no number."""
    given = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
    if not given:
        return 0
    if len(given) > 1 or not given[0].isdigit() or len(given[0]) > 18:
        raise TooLarge
    return int(given[0])


async def read_body(
    scope: Scope, receive: Receive, limit: int, count: Callable[[int], None] = lambda size: None
) -> bytes:
    """Return the body; `count` is called with the size of each part. Raises TooLarge, TooSlow or Gone."""
    if declared_length(scope) > limit:
        raise TooLarge
    parts: list[bytes] = []
    size, loop = 0, asyncio.get_running_loop()
    started = loop.time()
    while True:
        try:
            async with asyncio.timeout_at(started + BODY_SECONDS + size / SLOWEST):
                message = await receive()
        except TimeoutError:
            raise TooSlow from None
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge
        count(len(part))
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body which was read already, and then whatever comes after it."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
