"""Locks of a bench's folder that several processes write to, each to its own runs, perhaps from several machines.

Each of them holds `.lock` together with the others, so that no process that wants the folder for itself begins
meanwhile, and `.share-K-of-N` alone. What is written for all runs is written in turn, under `.turn`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from farfield.records.errors import RecordsError
from farfield.records.locking import ALONE, TOGETHER, LockedError, locked
from farfield.records.run_files import LOCK

TURN = ".turn"
#: Seconds that a process waits for its turn: what is done in a turn takes a few seconds for most data.
PATIENCE = 600.0
Prepared = TypeVar("Prepared")
_SHARE = re.compile(r"\.share-([0-9]+)-of-([0-9]+)")


def is_lock(name: str) -> bool:
    """Whether a file in a bench's folder is there for its lock alone."""
    return name in (LOCK, TURN) or _SHARE.fullmatch(name) is not None


@contextmanager
def one_of_several(folder: Path, number: int, of: int, prepare: Callable[[str | None], Prepared]) -> Iterator[Prepared]:
    """Be the process that makes share `number` of `of`; an error when the folder or this share is another's.

    `prepare` makes the folder ready before any other share can begin. It is told a share that is at work, as "1/2", or
    None; what it returns is given.
    """
    alone = f"another process is writing to '{folder}'; let it end first"
    own = f"another process makes share {number}/{of} of the bench in '{folder}'; let it end first"
    with ExitStack() as held:
        held.enter_context(locked(folder / LOCK, TOGETHER, 0.0, alone))
        with turn(folder):
            busy = _at_work(folder, number, of)
            held.enter_context(locked(folder / f".share-{number}-of-{of}", ALONE, 0.0, own))
            prepared = prepare(busy)
        yield prepared


def _at_work(folder: Path, number: int, of: int) -> str | None:
    """Return another share that is at work. Refuse to deal the runs out to another number of shares meanwhile.

    Shares take their locks in turns, so that none is disturbed by being asked.
    """
    busy = None
    for path in sorted(folder.glob(".share-*-of-*")):
        found = _SHARE.fullmatch(path.name)
        if found is None or (int(found[1]), int(found[2])) == (number, of):
            continue
        try:
            with locked(path, ALONE, 0.0, ""):
                continue
        except LockedError:
            busy = f"{found[1]}/{found[2]}"
        if int(found[2]) != of:
            raise RecordsError(
                f"another process makes share {busy} of the bench in '{folder}'; give the same number of shares, or "
                "let it end first"
            )
    return busy


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Be the only one to write what is there for all runs."""
    late = (
        f"another process has kept '{folder / TURN}' locked for {PATIENCE:g} s; end it, or remove this file if none is"
    )
    with locked(folder / TURN, ALONE, PATIENCE, late):
        yield
