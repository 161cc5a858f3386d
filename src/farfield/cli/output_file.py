"""Where a command is to write a file of its results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from farfield.errors import UserError


def check_output(option: str, path: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse a place that cannot be written, or that holds what is read, before any work is done."""
    if path is None:
        return
    if path.exists() and any(given is not None and _is_of(path, given) for given in inputs):
        raise UserError(f"{option}: '{path}' is what is read; name another file, or its content would be gone")
    if path.is_dir():
        raise UserError(f"{option}: '{path}' is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{option}: there is no folder '{path.parent}' to write '{path.name}' into")


def _is_of(path: Path, given: Path) -> bool:
    """Whether a file is what was given to be read, or lies in it."""
    if not given.exists():
        return False
    return path.samefile(given) or (given.is_dir() and path.resolve().is_relative_to(given.resolve()))
