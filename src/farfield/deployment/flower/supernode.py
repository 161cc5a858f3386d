"""Flower's SuperNode with shorter waits. Its options are those of `flower-supernode`.

    python -m farfield.deployment.flower.supernode …

Its loop sleeps three seconds when there is no message. Two exchanges a round would make that most of a round's time.
"""

from __future__ import annotations

import os

from farfield.deployment.flower.poll_intervals import look_again_soon, shorten_supernode

#: Seconds between looks for a message from the server, at most.
POLL_VARIABLE = "FARFIELD_SUPERNODE_POLL"
POLL_SECONDS = 0.2


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    shorten_supernode(float(os.environ.get(POLL_VARIABLE, POLL_SECONDS)))
    look_again_soon()
    flower_supernode()


if __name__ == "__main__":
    main()
