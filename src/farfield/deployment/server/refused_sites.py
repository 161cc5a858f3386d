"""Who was not let in, for the server's operator: the gate notes addresses, and these are told now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

#: Seconds between two words on sites that are not let in.
TELL_EVERY = 30.0


class RefusedSites:
    """Sites that Flower did not let in, as the gate has noted them; the operator hears of each address now and then."""

    def __init__(self, path: Path) -> None:
        self._path, self._told = path, dict[str, float]()
        path.unlink(missing_ok=True)

    def news(self) -> Iterator[str]:
        if not self._path.exists():
            return
        addresses = set(self._path.read_text(errors="replace").split())
        self._path.unlink(missing_ok=True)
        for address in sorted(addresses):
            now = time.monotonic()
            if now - self._told.get(address, -TELL_EVERY) >= TELL_EVERY:
                self._told[address] = now
                yield (
                    f"a site at {address} was not let in: its key is not among those given with --key, it is in use, "
                    "or the site's clock is wrong"
                )
