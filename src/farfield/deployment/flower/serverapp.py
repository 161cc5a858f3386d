"""Flower's ServerApp process, with its token from a pipe and the gate's secret from a file.

    python -m farfield.deployment.flower.serverapp SECRET_FILE …     # options as flwr-serverapp, without --token

Only this process's user can read the pipe, the file and its memory; a command line is for everybody.
"""

from __future__ import annotations

import sys
from pathlib import Path

from farfield.deployment.flower import request_headers
from farfield.deployment.flower.private_parts import find


def main(secret_file: Path, arguments: list[str]) -> None:
    own = request_headers.OwnRequests(secret_file.read_text())
    own.install()
    request_headers.installed = own
    token = sys.stdin.readline().strip()
    # Flower parses the arguments of this list; the command line that other users see stays as it was.
    sys.argv = ["flwr-serverapp", *arguments, "--token", token]
    find("flwr.superlink.cli.flwr_serverapp:flwr_serverapp")()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
