"""Notes of one kind in one: sixty that differ in a name and a number would push the result off the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: So many notes of one kind are still shown one by one.
SHOWN_ONE_BY_ONE = 3
#: Names that a folded note lists before it only counts.
NAMED = 5

_QUOTED = re.compile(r"'([^']*)'")
_NUMBER = re.compile(r"\d[\d.,  ]*")


def folded(notes: Iterable[str]) -> list[str]:
    """Return the notes with those of one kind in one, in the place of the first.

    Two notes are of one kind if they differ only in what is quoted and in numbers.
    """
    kinds: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        kinds.setdefault(_NUMBER.sub("#", _QUOTED.sub("''", note)), []).append(note)
    return [shown for of in kinds.values() for shown in (of if len(of) <= SHOWN_ONE_BY_ONE else [_fold(of)])]


def _fold(notes: Sequence[str]) -> str:
    """Return the first note, and how many others say the same of what."""
    first = _QUOTED.findall(notes[0])
    others = [
        " and ".join(f"'{name}'" for name, known in zip(_QUOTED.findall(note), first, strict=True) if name != known)
        for note in notes[1:]
    ]
    named = [name for name in dict.fromkeys(others) if name]
    if not named:
        return f"{notes[0]} (and {len(others)} more notes like this)"
    rest = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"{notes[0]} (the same, with other figures, of {', '.join(named[:NAMED])}{rest})"
