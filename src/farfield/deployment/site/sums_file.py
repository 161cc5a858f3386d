"""The file that holds what a site must remember of the secure sums of a run, so that a restart forgets none of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farfield.errors import UserError
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.checksums import DamagedFile


class SumsFolder:
    """One file per run in a site's state folder, readable by the site's user alone: it has the keys of an open sum."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, run: str) -> dict[str, Any]:
        path = self._path(run)
        if not path.exists():
            return {}
        try:
            record = read_checked_json(path)
            if not isinstance(record.get("answered"), dict):
                raise ValueError("it has no list of answers")
        except (DamagedFile, ValueError) as error:
            # Going on without it could answer a question twice, for different sites.
            raise UserError(
                f"what this site remembers of its secure sums in '{path}' is damaged ({error}); start a new run"
            ) from error
        return record

    def save(self, run: str, record: Mapping[str, Any]) -> None:
        path = self._path(run)
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        before = os.umask(0o077)
        try:
            write_checked_json(path, record)
        finally:
            os.umask(before)

    def _path(self, run: str) -> Path:
        """The server names runs, so the name itself is not used as a path."""
        return self._folder / f"sums-{hashlib.sha256(run.encode()).hexdigest()[:32]}.json"
