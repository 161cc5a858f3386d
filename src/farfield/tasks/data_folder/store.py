"""Where data sets lie: a folder that the user names, or the user's own cache. Nothing here downloads anything.

    path = require("rotated-mnist", "mnist.npz")      # a path, or a sentence that says what to do

`FARFIELD_DATA` names the folder (several, parted as in PATH, are searched in order; the first is written to).
"""

from __future__ import annotations

import os
from pathlib import Path

from farfield.errors import UserError

VARIABLE = "FARFIELD_DATA"


class MissingData(UserError):
    """A data set is not on this machine."""


def data_folders() -> tuple[Path, ...]:
    """The folders that are searched, in order. They need not exist."""
    named = [Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    return tuple(named) or (cache_folder() / "data",)


def data_folder() -> Path:
    """The folder that imports and downloads are written to."""
    return data_folders()[0]


def cache_folder() -> Path:
    """What can be made again (decoded images, features) goes here: FARFIELD_CACHE, else the user's cache directory."""
    named = os.environ.get("FARFIELD_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farfield"


def locate(*names: str) -> Path | None:
    """The first of these files or folders that is in a data folder: names in order, then folders in order."""
    for name in names:
        for folder in data_folders():
            if (folder / name).exists():
                return folder / name
    return None


def require(task: str, *names: str) -> Path:
    """As `locate`, or a sentence that says what is missing and how to get it."""
    found = locate(*names)
    if found is None:
        places = " or ".join(str(folder) for folder in data_folders())
        raise MissingData(
            f"the data of task '{task}' is not here: there is no {' or '.join(names)} in {places}; "
            f"{ways_to_get(*names)}, put it there with 'farfield data import', or set {VARIABLE} to where it lies"
        )
    return found


def ways_to_get(*names: str) -> str:
    """The commands that download what lies under one of these names, or the one that tells how to get it by hand."""
    # Imported here, because the catalogue is made of the data sets, and these find their files through this module.
    from farfield.tasks.data_folder.catalogue import CATALOGUE

    sets = [known.name for known in CATALOGUE.values() if known.fetch is not None and set(known.places) & set(names)]
    if not sets:
        return "see 'farfield data ls' for how to get it"
    return "get it with " + " or ".join(f"'farfield data fetch {name}'" for name in sets)
