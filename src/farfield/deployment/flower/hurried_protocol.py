"""Connections that must send their headers in time and within a limit; Flower's web server has neither limit."""

from __future__ import annotations

import asyncio
from typing import Any

from .private_parts import find

#: Seconds in which the headers of a request must arrive, and the most bytes that they may have.
HEADER_SECONDS, HEADER_BYTES = 30.0, 64 * 1024
#: Seconds that a connection stays after the answer that ends it.
LAST_WORD_SECONDS = 0.02
#: The most connections at a time; the next one is answered with 503.
MOST_CONNECTIONS = 2048


def hurried_protocol() -> type[asyncio.Protocol]:
    """Return the web server's protocol with both limits."""
    usual: Any = find("uvicorn.protocols.http.auto:AutoHTTPProtocol")

    class HurriedProtocol(usual):  # type: ignore[misc]
        """A connection that is closed if it takes long over its headers, or sends too much of them."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head, self._last_request = 0, None
            self._timer = self.loop.call_later(HEADER_SECONDS, self._look)

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._head = self._head + len(data) if self._between_requests() else 0
            if self._head > HEADER_BYTES:
                self.transport.abort()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                # By TLS it would take the rest of a refused body, and throw it away, until the sender is done.
                self.loop.call_later(LAST_WORD_SECONDS, self.transport.abort)

        def _between_requests(self) -> bool:
            return self.cycle is None or bool(self.cycle.response_complete)

        def _look(self) -> None:
            if self._between_requests() and self.cycle is self._last_request:
                self.transport.abort()
                return
            self._last_request = self.cycle
            self._timer = self.loop.call_later(HEADER_SECONDS, self._look)

    return HurriedProtocol
