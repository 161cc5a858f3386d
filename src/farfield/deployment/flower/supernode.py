"""Flower's SuperNode with shorter polling intervals and a bound on what it reads, for the processes of one user.

    python -m farfield.deployment.flower.supernode SECRET_FILE …     # options as flower-supernode

Flower's loop sleeps three seconds when there is no message. With two exchanges per round that is most of the time.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from farfield.deployment.flower.bounded_responses import bound_responses
from farfield.deployment.flower.own_user_only import keep_others_out, secret_in
from farfield.deployment.flower.poll_intervals import shorten_object_polling, shorten_supernode_polling
from farfield.deployment.flower.private_parts import find, replace

#: The environment variable, and the default, of the seconds between two requests for a message from the server.
POLL_VARIABLE = "FARFIELD_SUPERNODE_POLL"
POLL_SECONDS = 0.2
#: The environment variable, and the default, of the most bytes that one message of the server may have.
MOST_VARIABLE = "FARFIELD_SUPERNODE_MOST_BYTES"
MOST_BYTES = 1 << 30
#: The environment variable with the number of the open socket at which to listen; without it, Flower opens one.
SOCKET_VARIABLE = "FARFIELD_SUPERNODE_SOCKET"


def listen_at(descriptor: int) -> None:
    """Let the SuperNode listen at a socket that this process was handed: nobody else can have taken the port."""
    server: Any = find("flwr.supernode.cli.flower_supernode:uvicorn.Server")

    class AtOwnSocket(server):  # type: ignore[misc]
        def run(self, sockets: list[socket.socket] | None = None) -> None:
            super().run(sockets=[socket.socket(fileno=descriptor)])

    replace("flwr.supernode.cli.flower_supernode:uvicorn.Server", AtOwnSocket)


def main() -> None:
    secret = Path(sys.argv.pop(1))
    shorten_supernode_polling(float(os.environ.get(POLL_VARIABLE, POLL_SECONDS)))
    shorten_object_polling()
    keep_others_out(secret_in(secret))
    if SOCKET_VARIABLE in os.environ:
        listen_at(int(os.environ[SOCKET_VARIABLE]))
    bound_responses(int(os.environ.get(MOST_VARIABLE, MOST_BYTES)))
    find("flwr.supernode.cli:flower_supernode")()


if __name__ == "__main__":
    main()
