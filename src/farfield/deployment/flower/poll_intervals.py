"""Flower's waits, cut to what a federation of quick phases needs: they are most of the time of a small model's round.

Flower announces a message before its content is there. Who looks in between waits a second before looking again, and a
round of two exchanges has a dozen such occasions. These are private parts of Flower, which is why its version is
pinned; should they ever be gone, this fails and says so.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

#: Seconds after which content that was announced is looked for again at first; twice as long each time, as in Flower.
LOOK_AGAIN = 0.05
#: Seconds between looks at most: across the network, and on this machine.
LOOK_ACROSS, LOOK_HERE = 0.5, 0.2
#: Seconds between a SuperNode's looks into its own memory.
LOOK_INSIDE = 0.05


def look_again_soon(longest: float = LOOK_ACROSS) -> None:
    """In this process, look for content that is not there yet after milliseconds, not after a second.

    Flower gives up after so many looks or after two hours; with shorter waits only the two hours are left.
    """
    from flwr.supercore.inflatable import inflatable_utils as objects

    for pull in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        defaults = pull.__kwdefaults__
        assert defaults is not None
        assert {"initial_backoff", "backoff_cap", "max_tries_per_object"} <= defaults.keys()
        defaults |= {"initial_backoff": LOOK_AGAIN, "backoff_cap": longest, "max_tries_per_object": None}


def shorten_supernode(seconds: float) -> None:
    """Let a SuperNode ask its server for messages this often, and look for its own app's reply oftener still."""
    from flwr.supernode import start_client_internal as loop

    class Clock(SimpleNamespace):
        def __getattr__(self, name: str) -> object:
            return getattr(time, name)

    def sleep(asked: float) -> None:
        # Flower's loop sleeps three seconds when there is no message, and half a second when there is no reply yet.
        time.sleep(min(asked, seconds if asked > 1 else LOOK_INSIDE))

    loop.time = Clock(sleep=sleep)  # type: ignore[attr-defined, assignment]
