"""Files that only this user can read: tokens, keys, databases and logs of a deployment."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

#: Nothing for the group and for others, in files that this process and the processes it starts make.
UMASK = 0o077


@contextlib.contextmanager
def for_this_user_only() -> Iterator[None]:
    """Make new files and folders of this process readable by this user alone."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def make_private(folder: Path) -> None:
    """Make a folder if there is none, and take the rights of others from it and from everything in it."""
    with for_this_user_only():
        folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # first: from here on, nobody else can open a file in it
    for inside, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(inside, name)
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                if not stat.S_ISLNK(mode) and mode & UMASK:
                    os.chmod(path, stat.S_IMODE(mode) & ~UMASK)
