"""Where the command line prints: results to standard output, everything about the work to standard error.

Everything is printed by way of these two consoles, and both show what a terminal would obey instead of passing it on.
"""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from farfield.printable import visible

#: Width of what goes to a file or a pipe, where there is no terminal to ask.
PLAIN_WIDTH = 120


class SafeConsole(Console):
    """A console that writes no control character but its own: the last place before a terminal."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Escape before the width is measured, so that a table stays in order."""
        return super().render_str(visible(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape the text of every segment; the console's own movements of the cursor are control segments."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return SafeConsole(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH)


output = _console(stderr=False)
messages = _console(stderr=True)
