"""End a command that runs for hours: Ctrl-C, and SIGTERM from a service manager.

| signal | what happens | exit code |
|---|---|---|
| Ctrl-C | the processes that were started are ended, what was recorded stays | 130 |
| SIGTERM | the same, as a service manager asks for it | 0 |
| a second one | everything is killed at once | 128 + the signal's number |
"""

from __future__ import annotations

import os
import signal
from types import FrameType

import typer
from rich.markup import escape

from farfield.cli.console import messages


class Terminated(KeyboardInterrupt):
    """SIGTERM has come: whoever catches Ctrl-C catches it, too."""


class EndedBySignals:
    """Within this context the first signal raises KeyboardInterrupt or Terminated, and the second ends the process."""

    def __enter__(self) -> None:
        self._asked = False
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            end_at_once(number)
        self._asked = True
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def end_at_once(number: int) -> None:
    """Kill every process that this command has started, and this process."""
    from farfield.deployment.flower.processes import kill_all

    kill_all()
    os._exit(128 + number)


def stop(text: str, cause: KeyboardInterrupt) -> None:
    """Print how to go on, and end the command with the code of its cause."""
    messages.print(f"\n{escape(text)}", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if isinstance(cause, Terminated) else 130) from None
