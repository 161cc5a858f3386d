"""`python -m farfield` is the `farfield` command."""

from farfield.cli.main import run

run()
