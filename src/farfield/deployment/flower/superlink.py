"""Make Flower's SuperLink write less to its disk (`flower_commands` starts it, without importing farfield).

Its database must be a file, so that sites are still registered when the server is started again. With a file, every
message costs hundreds of SQL statements, which are most of a round's time. Two kinds of statements are avoided.
"""

from __future__ import annotations

import time
from typing import Any

from .private_parts import find, replace

#: Seconds between two searches for tasks without heartbeats; Flower allows a task half a minute or more anyway.
SEARCH_SECONDS = 1.0

_STORE = "flwr.superlink.config_loader:ObjectStoreFactory"
_SEARCH = "flwr.supercore.corestate.sql_corestate:SqlCoreState._cleanup_expired_task_tokens"


def keep_content_in_memory() -> None:
    """Keep the content of messages in memory, and nodes and runs in the file.

    A killed server loses nothing by it, because it resumes its run from its own checkpoint. Models in transit are not
    written to a disk.
    """
    from flwr.supercore.object_store import ObjectStoreFactory

    replace(_STORE, lambda *_, **__: ObjectStoreFactory())


def search_expired_less_often(seconds: float) -> None:
    """Let the SuperLink search for tasks without heartbeats at this interval; Flower searches at every request."""
    search = find(_SEARCH)
    last: dict[int, float] = {}

    def sometimes(state: Any) -> None:
        now = time.monotonic()
        if now - last.get(id(state), -seconds) >= seconds:
            last[id(state)] = now
            search(state)

    replace(_SEARCH, sometimes)


def write_less_to_disk() -> None:
    """Do both, before the SuperLink is started."""
    keep_content_in_memory()
    search_expired_less_often(SEARCH_SECONDS)
