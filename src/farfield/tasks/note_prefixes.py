"""How a note on a leak begins: the report shows such notes in its headline, and finds them by these words alone."""

from __future__ import annotations

#: A column that all but tells the label.
COLUMN_LEAK = "leak? "
#: The same content in several domains.
COPY_LEAK = "leakage: "


def is_leak(note: str) -> bool:
    """Whether a note on the data is about a leak, whatever names stand in it."""
    return note.startswith((COLUMN_LEAK, COPY_LEAK))


#: A bench on a part of its task (`--rows`).
QUICK_LOOK = "this is a quick look at "
