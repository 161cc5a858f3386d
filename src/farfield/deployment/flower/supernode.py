"""Flower's SuperNode, with shorter polling intervals and a bound on what it reads.

Its options are those of `flower-supernode`.

    python -m farfield.deployment.flower.supernode …

Flower's loop sleeps three seconds when there is no message. With two exchanges per round that is most of the time.
"""

from __future__ import annotations

import os

from farfield.deployment.flower.bounded_responses import bound_responses
from farfield.deployment.flower.poll_intervals import shorten_object_polling, shorten_supernode_polling

#: The environment variable, and the default, of the seconds between two requests for a message from the server.
POLL_VARIABLE = "FARFIELD_SUPERNODE_POLL"
POLL_SECONDS = 0.2
#: The environment variable, and the default, of the most bytes that one message of the server may have.
MOST_VARIABLE = "FARFIELD_SUPERNODE_MOST_BYTES"
MOST_BYTES = 1 << 30


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    shorten_supernode_polling(float(os.environ.get(POLL_VARIABLE, POLL_SECONDS)))
    shorten_object_polling()
    bound_responses(int(os.environ.get(MOST_VARIABLE, MOST_BYTES)))
    flower_supernode()


if __name__ == "__main__":
    main()
