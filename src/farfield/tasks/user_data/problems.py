"""All problems of a table in one message, each with the option that solves it.

    problems = Problems()
    problems.add("the label 'died' is missing in row 3", "--drop-missing-labels")
    problems.refuse(doubts)                    # raises TableError if there are any

One problem is one sentence. Of several the message has one line each, and the options together in the last line, so
that a table is mended in one pass. What only the user can judge (ids, leaks, rows of one patient) stands below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from farfield.tasks.user_data.table_file import TableError

T = TypeVar("T")
#: Doubts that the message of a refused table shows before it counts the others.
SHOWN = 12
#: An option in a note, such as --drop 'id'.
_OPTION = re.compile(r"--(?:drop|group|categorical|kind)\b")


class Problems:
    """What keeps a table from becoming a task, gathered while it is read as if each was solved."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def add(self, sentence: str, option: str = "") -> None:
        """Note a problem, and the option that solves it, if one does."""
        self._found.append((sentence, option))

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Return what `work` gives, or note why it cannot be done and return None."""
        try:
            return work()
        except TableError as error:
            self.add(str(error))
            return None

    def __bool__(self) -> bool:
        return bool(self._found)

    def refuse(self, doubts: Sequence[str] = ()) -> None:
        """Raise one TableError for all problems; do nothing where there are none. `doubts` are notes on the table."""
        if not self._found:
            return
        open_doubts = [note for note in doubts if _OPTION.search(note) or "one class only" in note]
        if len(self._found) == 1 and not open_doubts:
            raise TableError(self._found[0][0])
        count = len(self._found)
        lines = [f"{count} problems:" if count > 1 else "1 problem:"]
        lines += [f"  {number}. {sentence}" for number, (sentence, _) in enumerate(self._found, start=1)]
        options = list(dict.fromkeys(option for _, option in self._found if option))
        if options:
            rest = "" if all(option for _, option in self._found) else ", and mend the others in the file"
            lines.append(f"say {' '.join(options)} to leave such rows out{rest}")
        if open_doubts:
            lines.append("and look at what only you can judge:")
            lines += [f"  - {note}" for note in open_doubts[:SHOWN]]
            if len(open_doubts) > SHOWN:
                lines.append(f"  - and {len(open_doubts) - SHOWN} more")
        raise TableError("\n".join(lines))
