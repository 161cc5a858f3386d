"""Sites that were not let in, for the server's operator: the gate notes their addresses, and this reports them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

#: Seconds between two sentences about the same address.
REPEAT_SECONDS = 30.0


class RefusedSites:
    """The addresses that the gate has turned away. Each is reported at most once in `REPEAT_SECONDS`."""

    def __init__(self, path: Path) -> None:
        self._path, self._reported = path, dict[str, float]()
        path.unlink(missing_ok=True)

    def new_sentences(self) -> Iterator[str]:
        """Return one sentence per address that was turned away since the last call."""
        if not self._path.exists():
            return
        addresses = set(self._path.read_text(errors="replace").split())
        self._path.unlink(missing_ok=True)
        for address in sorted(addresses):
            now = time.monotonic()
            if now - self._reported.get(address, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                self._reported[address] = now
                yield (
                    f"a site at {address} was not let in: its key is not among those given with --key, it is in use, "
                    "or the site's clock is wrong"
                )
