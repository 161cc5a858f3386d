"""`farfield watch`: a running bench, training or deployment in the browser."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.console import messages
from farfield.errors import UserError
from farfield.watch.server import LOOPBACK, PORTS, WatchServer, is_loopback


def watch(
    folder: Annotated[
        Path, typer.Argument(help="The folder that 'bench --out', 'train --out' or 'server --out' names.")
    ],
    port: Annotated[
        int | None,
        typer.Option(help=f"Port; 0 for any. Default: the first free one from {PORTS[0]}.", show_default=False),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anything but loopback shows the page to the network.")
    ] = LOOPBACK,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Show a running bench, training or deployment in the browser, without its held-out results."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file; give the folder that --out names")
    with WatchServer(folder, host, port) as server:
        _say(f"watching {folder} at {server.url} (Ctrl-C ends the view, not the work)")
        if not folder.exists():
            _say("the folder does not exist yet; the page waits for it")
        if not is_loopback(host):
            _say(
                f"warning: everybody who can reach {host}, port {server.port} can read the names, figures and events "
                "in this folder, and its report; there is no password and no encryption"
            )
        if browser and _has_screen():
            # In a thread, because some browsers keep the caller waiting until they are closed.
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            _say("stopped watching")


def _say(sentence: str) -> None:
    messages.print(sentence, highlight=False, soft_wrap=True, markup=False)


def _has_screen() -> bool:
    """Return whether a browser would open a window: without a screen some would take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(k) for k in ("DISPLAY", "WAYLAND_DISPLAY"))
