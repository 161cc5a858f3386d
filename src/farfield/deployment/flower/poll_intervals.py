"""Shorten Flower's polling intervals, which are most of the time of a small model's round.

Flower announces a message before its content is there. A process that asks for the content in between waits a second
before it asks again, and a round of two exchanges has a dozen such occasions. The intervals are private parts of
Flower (`private_parts`). If a later version does not have them, these functions fail.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

from farfield.deployment.flower.private_parts import find

#: Seconds before a process first asks again for announced content; they double each time, as in Flower.
FIRST_INTERVAL = 0.05
#: The longest interval in seconds: across the network, and on one machine.
LONGEST_ACROSS, LONGEST_HERE = 0.5, 0.2
#: Seconds between two looks of a SuperNode for a reply in its own memory.
INSIDE_INTERVAL = 0.05


def shorten_object_polling(longest: float = LONGEST_ACROSS) -> None:
    """Let this process ask again for content that is not there yet after milliseconds, not after a second.

    Flower gives up after a number of requests or after two hours; with shorter intervals only the two hours remain.
    """
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = find(f"flwr.supercore.inflatable.inflatable_utils:{name}").__kwdefaults__
        defaults |= {"initial_backoff": FIRST_INTERVAL, "backoff_cap": longest, "max_tries_per_object": None}


def shorten_supernode_polling(seconds: float) -> None:
    """Let a SuperNode ask its server for messages this often, and look for its own app's reply more often still."""
    find("flwr.supernode.start_client_internal:time.sleep")  # else nothing would sleep shorter
    from flwr.supernode import start_client_internal as loop

    class Clock(SimpleNamespace):
        def __getattr__(self, name: str) -> object:
            return getattr(time, name)

    def sleep(asked: float) -> None:
        # Flower's loop sleeps three seconds when there is no message, and half a second when there is no reply yet.
        time.sleep(min(asked, seconds if asked > 1 else INSIDE_INTERVAL))

    loop.time = Clock(sleep=sleep)  # type: ignore[attr-defined, assignment]
