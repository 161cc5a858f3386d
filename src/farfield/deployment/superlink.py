"""Flower's own SuperLink and its `flwr` command, with a gate between them and everybody else (see `gate`).

python -m farfield.deployment.superlink SECRET_FILE link …      # options as flower-superlink
python -m farfield.deployment.superlink SECRET_FILE flwr …      # options as flwr
"""

from __future__ import annotations

import sys
from pathlib import Path


def serve(secret: str) -> None:
    """A SuperLink whose Control API wants the secret."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    from farfield.deployment.gate import Gate

    extensions.get_middleware = lambda: (Middleware(Gate, secret=secret),)
    flower_superlink()


def command(secret: str) -> None:
    """Flower's command, which shows the secret with every request."""
    from flwr.cli.app import app
    from flwr.cli.auth_plugin import NoOpCliAuthPlugin
    from flwr.common.constant import ACCESS_TOKEN_KEY

    NoOpCliAuthPlugin.write_tokens_to_metadata = lambda self, metadata: [*metadata, (ACCESS_TOKEN_KEY, secret)]  # type: ignore[method-assign]
    app()


def main() -> None:
    _, file, which, *arguments = sys.argv
    sys.argv = [which, *arguments]
    secret = Path(file).read_text()
    (serve if which == "link" else command)(secret)


if __name__ == "__main__":
    main()
