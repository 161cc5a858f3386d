"""Flower's own SuperNode with shorter waits: `python -m farfield.deployment.supernode`, options as `flower-supernode`.

Flower's loop sleeps three seconds when there is no message and half a second between looks for a reply. Two exchanges a
round make that most of a round's time, so the sleeps of this one module are cut to what the environment says.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

#: Seconds between looks, at most.
POLL_VARIABLE = "FARFIELD_SUPERNODE_POLL"
POLL_SECONDS = 0.2


def shorten_waits(seconds: float) -> None:
    """Let the SuperNode's loop look for messages and replies this often."""
    from flwr.supernode import start_client_internal as loop

    class Clock(SimpleNamespace):
        def __getattr__(self, name: str) -> object:
            return getattr(time, name)

    loop.time = Clock(sleep=lambda asked: time.sleep(min(asked, seconds)))  # type: ignore[attr-defined, assignment]


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    shorten_waits(float(os.environ.get(POLL_VARIABLE, POLL_SECONDS)))
    flower_supernode()


if __name__ == "__main__":
    main()
