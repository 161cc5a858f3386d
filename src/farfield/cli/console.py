"""Where the command line prints: results to standard output, everything about the work to standard error."""

import sys

from rich.console import Console

#: Width of what goes to a file or a pipe, where there is no terminal to ask.
PLAIN_WIDTH = 120


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH)


output = _console(stderr=False)
messages = _console(stderr=True)
