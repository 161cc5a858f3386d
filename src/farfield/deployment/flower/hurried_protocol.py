"""Connections that must send their headers in time and within a limit, and of which one address has a share.

Flower's web server has none of these limits. Without a share for each address, one machine without a key could hold all
connections, and no site could send its reply.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Any

from .private_parts import find

#: Seconds in which the headers of a request must arrive, and the most bytes that they may have.
HEADER_SECONDS, HEADER_BYTES = 30.0, 64 * 1024
#: Seconds that a connection stays after the answer that ends it.
LAST_WORD_SECONDS = 0.02
#: The most connections at a time; the next one is answered with 503.
MOST_CONNECTIONS = 2048
#: The most connections of one address. A site has a few, and many sites may share an address behind NAT.
MOST_OF_ONE_ADDRESS = 512
#: Open files that the process asks for: a connection is one, also while it does not begin with TLS.
OPEN_FILES = 65_536


def counted_address(peer: Any) -> str | None:
    """Return what the connections of a peer are counted by; None if they are not.

    An IPv6 customer has a whole network of addresses, so its first 64 bits count. The server's own processes come by
    loopback; another user of this machine has many addresses there, and could not be told from them by one.
    """
    try:
        address = ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return "unknown"
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return None
    return str(IPv6Address(int(address) >> 64 << 64)) if isinstance(address, IPv6Address) else str(address)


def ask_for_open_files(most: int = OPEN_FILES) -> None:
    """Raise this process's own limit on open files as far as it may: often it is 1024, fewer than the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def hurried_protocol() -> type[asyncio.Protocol]:
    """Return the web server's protocol with all limits."""
    usual: Any = find("uvicorn.protocols.http.auto:AutoHTTPProtocol")
    held: Counter[str] = Counter()

    class HurriedProtocol(usual):  # type: ignore[misc]
        """A connection that is closed if it is one too many, takes long over its headers or sends too much of them."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head, self._last_request = 0, None
            self._timer = self.loop.call_later(HEADER_SECONDS, self._look)
            self._address = counted_address(transport.get_extra_info("peername"))
            if self._address is not None:
                held[self._address] += 1
                if held[self._address] > MOST_OF_ONE_ADDRESS:
                    transport.abort()

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            if self._address is not None:
                held[self._address] -= 1
                if held[self._address] <= 0:
                    del held[self._address]
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
