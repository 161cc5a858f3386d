"""Bound what a SuperNode reads from its server, before it is in memory.

Flower reads the whole body of a response, however large it is. A server could fill a site's memory with one message.
The client of Flower's Fleet API is a private part of Flower; if a later version does not have it, this fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx

#: The end of the paths at which a new message begins, and at which its parts are read.
MESSAGES, OBJECT = "/pull-messages", "/pull-object"


class TooLarge(RuntimeError):
    """A response has more bytes than a message may have."""


def bound_responses(most: int) -> None:
    """Let every client of Flower's in this process give up a message as soon as it has more than `most` bytes."""
    from flwr.supercore.protobuf.client import ProtobufClient

    start = ProtobufClient.__init__

    def bounded(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        if not isinstance(getattr(self, "_client", None), httpx.Client):
            raise RuntimeError("this version of Flower has no '_client' to bound")
        self._client.event_hooks = {"response": [response_bound(most)]}

    ProtobufClient.__init__ = bounded  # type: ignore[method-assign]


def response_bound(most: int) -> Callable[[httpx.Response], None]:
    """Return a hook that replaces the stream of a response by one that ends with an error beyond `most` bytes.

    The parts of one message are requested one by one, and count together.
    """
    read = {"message": 0}

    def check(response: httpx.Response) -> None:
        path = response.request.url.path
        if path.endswith(MESSAGES):
            read["message"] = 0
        before = read["message"] if path.endswith(OBJECT) else 0
        if response.headers.get("content-encoding", "identity") != "identity":
            raise TooLarge("the server sends a compressed response, whose size cannot be known")
        declared = response.headers.get("content-length", "0")
        if not declared.isdigit() or before + int(declared) > most:
            raise TooLarge(f"the server sends {declared} bytes after {before}, and a message may have {most}")

        def count(size: int) -> None:
            if path.endswith(OBJECT):
                read["message"] += size

        response.stream = _Bounded(response.stream, most - before, count)

    return check


class _Bounded(httpx.SyncByteStream):
    """A stream that gives up beyond a number of bytes."""

    def __init__(self, stream: Any, most: int, count: Callable[[int], None]) -> None:
        self._stream, self._most, self._count = stream, most, count

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        for chunk in self._stream:
            total += len(chunk)
            self._count(len(chunk))
            if total > self._most:
                raise TooLarge(f"the server sends more than the {self._most} bytes that are left for a message")
            yield chunk

    def close(self) -> None:
        self._stream.close()
