"""What `farfield server` and `farfield client` print while they run: one line per event, each with its time.

On a terminal a last line shows the phase under way. In a log that line is printed when nothing was for a while.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from farfield.printable import one_line
from farfield.runs.estimate import duration

#: Seconds without a line after which a log has one about the phase under way.
SILENCE = 30.0
#: What a site's operator reads when the server has asked a question.
_QUESTIONS = {
    "describe": "the site's schema",
    "statistics": "statistics of the columns",
    "moments": "moments and a linear head, for the diagnosis",
    "measure": "figures of the model on this site's rows",
}
_STYLES = {
    "measured": "bold",
    "summary": "bold",
    "refused": "red",
    "turned-away": "red",
    "problem": "yellow",
    "event": "yellow",
    "left": "yellow",
}
#: The kind of a row about the phase under way.
PROGRESS = "progress"


class DeploymentConsole:
    """Prints the rows of an activity log. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._spoke = time.monotonic()
        self._phase = _PhaseLine()
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(self._phase, console=console, transient=True, refresh_per_second=2)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, row: Mapping[str, Any]) -> None:
        """Print a row, or keep it for the last line."""
        if row.get("kind") == PROGRESS:
            self._phase.set(row)
            if self._live is not None or time.monotonic() - self._spoke < SILENCE:
                return
        else:
            self._phase.clear()
        self._spoke = time.monotonic()
        style = _STYLES.get(str(row.get("kind")))
        line = escape(line_of(row))
        self._console.print(f"[{style}]{line}[/]" if style else line, highlight=False, soft_wrap=True)


class _PhaseLine:
    """The phase under way, with the seconds that it has taken by now."""

    def __init__(self) -> None:
        self._row: Mapping[str, Any] | None = None
        self._at = 0.0

    def set(self, row: Mapping[str, Any]) -> None:
        self._row, self._at = row, time.monotonic() - float(row.get("seconds") or 0.0)

    def clear(self) -> None:
        self._row = None

    def __rich__(self) -> RenderableType:
        row = self._row
        if row is None:
            return Text("")
        seconds = duration(time.monotonic() - self._at)
        counts = f"{row.get('answered')} of {row.get('asked')} sites after {seconds}"
        text = f"round {row.get('round')} of {row.get('rounds')}, {row.get('phase')}: {counts}; waiting for "
        return Text(one_line(f"{text}{row.get('waiting')}"), style="dim", no_wrap=True, overflow="ellipsis")


def line_of(row: Mapping[str, Any]) -> str:
    """Return a row of an activity log as one line, with its time."""
    kind, text = str(row.get("kind")), str(row.get("text"))
    facts = []
    if row.get("loss") is not None:
        facts.append(f"loss {row['loss']:.4f}")
    if row.get("validation") is not None:
        facts.append(f"source validation {row['validation']:.4f}")
    if row.get("sites"):
        facts.append(str(row["sites"]))
    if row.get("left"):
        facts.append(f"about {duration(float(row['left']))} left")
    if kind == "phase":
        text = f"round {row.get('round')}, {text}"
    if kind == "question":
        text = _QUESTIONS.get(text, text)
    if row.get("bytes"):
        facts.append(f"{row['bytes'] / 1000:.1f} kB sent" if row["bytes"] >= 1000 else f"{row['bytes']} B sent")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(row.get("time") or time.time())))
    return one_line(f"{when} {text}{': ' if facts else ''}{', '.join(facts)}")
