"""Locks on files, which end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farfield.records.errors import RecordsError

#: Held by one process, or by several that all hold it so.
ALONE, TOGETHER = fcntl.LOCK_EX, fcntl.LOCK_SH


class LockedError(RecordsError):
    """A lock that another process holds."""


@contextmanager
def locked(path: Path, kind: int, patience: float, otherwise: str) -> Iterator[None]:
    """Hold the lock of a file; the sentence `otherwise` when another process still has it after `patience` seconds."""
    # A lock that is shared needs a file that can be read, one that is not a writable one.
    with open(path, "a+") as file:
        limit = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= limit:
                    raise LockedError(otherwise) from None
                time.sleep(0.1)
            except OSError as error:
                raise RecordsError(
                    f"files in '{path.parent}' cannot be locked ({os.strerror(error.errno or 0)}), so nothing would "
                    "keep two processes apart there; use a file system with locks (Lustre has them when it is mounted "
                    "with 'flock')"
                ) from error
        yield
