"""Files that only this user can read: tokens, keys, databases and logs of a deployment."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from farfield.errors import UserError

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
    """Make a folder if there is none, and take the rights of others from it and from everything in it.

    Refuses what belongs to another user, who may have put it there: the owner can take the rights back at any time.
    """
    with for_this_user_only():
        folder.mkdir(parents=True, exist_ok=True)
    _need_own(folder, folder.stat())
    folder.chmod(0o700)  # first: from here on, nobody else can open a file in it
    for inside, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(inside, name)
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(path)
                _need_own(path, found)
                if not stat.S_ISLNK(found.st_mode) and found.st_mode & UMASK:
                    os.chmod(path, stat.S_IMODE(found.st_mode) & ~UMASK)


def _need_own(path: Path | str, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UserError(
            f"'{path}' belongs to another user (number {found.st_uid}), who could read and change what is kept there; "
            "choose another folder, or make it yours with chown"
        )
