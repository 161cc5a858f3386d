"""The answer of a client that does not do what a server asks of it."""

from __future__ import annotations

from farfield.errors import UserError


class Refused(UserError):
    """A site does not do what a server asks of it. Both sides read the sentence."""
