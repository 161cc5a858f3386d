"""Where the command line prints: results to standard output, everything about the work to standard error."""

from rich.console import Console

output = Console(soft_wrap=False)
messages = Console(stderr=True)
