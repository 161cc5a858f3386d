"""Locks of a bench's folder that several processes write to, each to its own runs, perhaps from several machines.

Each of them holds `.lock` together with the others, so that no process that wants the folder for itself begins
meanwhile, and `.share-K-of-N` alone. What is written for all runs is written in turn, under `.turn`.
"""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from farfield.records.errors import RecordsError
from farfield.records.run_files import LOCK

TURN = ".turn"
#: Seconds that a process waits for its turn: what is done in a turn takes a few seconds for most data.
PATIENCE = 600.0
_SHARE = re.compile(r"\.share-([0-9]+)-of-([0-9]+)")


def is_lock(name: str) -> bool:
    """Whether a file in a bench's folder is there for its lock alone."""
    return name in (LOCK, TURN) or _SHARE.fullmatch(name) is not None


@contextmanager
def one_of_several(folder: Path, number: int, of: int) -> Iterator[None]:
    """Be the process that makes share `number` of `of`; an error when the folder or this share is another's."""
    with _locked(folder / LOCK, fcntl.LOCK_SH, 0.0, f"another process is writing to '{folder}'; let it end first"):
        name = f".share-{number}-of-{of}"
        own = f"another process makes share {number}/{of} of the bench in '{folder}'; let it end first"
        with ExitStack() as held:
            with turn(folder):
                _check_same_deal(folder, of)
                held.enter_context(_locked(folder / name, fcntl.LOCK_EX, 0.0, own))
            yield


def _check_same_deal(folder: Path, of: int) -> None:
    """Refuse to deal the runs out to another number of shares while some are at work."""
    for path in sorted(folder.glob(".share-*-of-*")):
        found = _SHARE.fullmatch(path.name)
        if found is not None and int(found[2]) != of:
            with _locked(
                path,
                fcntl.LOCK_EX,
                0.0,
                f"another process makes share {found[1]}/{found[2]} of the bench in '{folder}'; give the same number "
                f"of shares, or let it end first",
            ):
                pass


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Be the only one to write what is there for all runs."""
    late = (
        f"another process has kept '{folder / TURN}' locked for {PATIENCE:g} s; end it, or remove this file if none is"
    )
    with _locked(folder / TURN, fcntl.LOCK_EX, PATIENCE, late):
        yield


@contextmanager
def _locked(path: Path, kind: int, patience: float, otherwise: str) -> Iterator[None]:
    with open(
        path, "a+"
    ) as file:  # a lock that is shared needs a file that can be read, one that is not a writable one
        limit = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= limit:
                    raise RecordsError(otherwise) from None
                time.sleep(0.1)
        yield
