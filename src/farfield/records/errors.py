"""What is wrong with a folder."""

from __future__ import annotations

from farfield.errors import UserError


class RecordsError(UserError):
    """A folder that cannot be used as asked, in one sentence."""
