"""Flower's SuperLink with less on its disk (see `gate`, which starts it; this imports nothing of farfield's either).

Its database must be a file, so that sites are still known when the server is started again. But then every message
means hundreds of statements there, and they are most of a round's time. Two kinds of them are spared.
"""

from __future__ import annotations

import time
from typing import Any

#: Seconds between looks for tasks that no longer send heartbeats; Flower gives them half a minute or more anyway.
TIDY_SECONDS = 1.0


def keep_content_in_memory() -> None:
    """What messages hold is kept in memory; nodes and runs stay in the file.

    Nothing is lost by it: a server that was killed starts its run again from its own checkpoint. And models on their
    way do not end up on a disk.
    """
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink import config_loader

    config_loader.ObjectStoreFactory = lambda *_, **__: ObjectStoreFactory()  # type: ignore[attr-defined, assignment]


def tidy_up_less(seconds: float) -> None:
    """Let the SuperLink end tasks that have gone silent once in a while; Flower looks for them at every request."""
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    tidy_up = SqlCoreState._cleanup_expired_task_tokens
    last: dict[int, float] = {}

    def sometimes(state: Any) -> None:
        now = time.monotonic()
        if now - last.get(id(state), -seconds) >= seconds:
            last[id(state)] = now
            tidy_up(state)

    SqlCoreState._cleanup_expired_task_tokens = sometimes  # type: ignore[method-assign, assignment]


def less_on_disk() -> None:
    """Both, before the SuperLink is started."""
    keep_content_in_memory()
    tidy_up_less(TIDY_SECONDS)
