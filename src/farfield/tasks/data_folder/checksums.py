"""Checksums of what lies in the data folder: `NAME.sha256` beside each file or folder, in the format of sha256sum."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from farfield.errors import UserError

#: Sums that came with the folder; they count for what has no record of its own.
FOLDER_SUMS = "SHA256SUMS"
_BLOCK = 1 << 20


class WrongChecksum(UserError):
    """A file does not have the content that it should have."""


def digest(path: Path, kind: str = "sha256") -> str:
    """The hash of a file, read in blocks."""
    sum_ = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            sum_.update(block)
    return sum_.hexdigest()


def files_of(path: Path) -> Iterator[Path]:
    """A file itself, or all files of a folder in order; names that begin with a dot are left out."""
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def sums(path: Path) -> dict[str, str]:
    """The hash of every file, by its name relative to the data folder that `path` lies in."""
    return {file.relative_to(path.parent).as_posix(): digest(file) for file in files_of(path)}


def write_record(path: Path, found: dict[str, str], origin: Iterable[str] = ()) -> None:
    """Write the sums beside `path`, whole or not at all, after comments that say where the data is from."""
    record = record_of(path)
    partial = record.with_name(f".{record.name}.{os.getpid()}.part")
    try:
        lines = [*(f"# {text}" for text in origin), *(f"{value}  {name}" for name, value in found.items())]
        partial.write_text("".join(f"{line}\n" for line in lines))
        os.replace(partial, record)
    finally:
        partial.unlink(missing_ok=True)


def recorded(path: Path) -> dict[str, str] | None:
    """The sums that were recorded for `path`, or those in the folder's own list; None where there are none."""
    record = record_of(path)
    if record.is_file():
        return _parse(record)
    common = path.parent / FOLDER_SUMS
    if not common.is_file():
        return None
    inside = {n: s for n, s in _parse(common).items() if n == path.name or n.startswith(f"{path.name}/")}
    return inside or None


def _parse(record: Path) -> dict[str, str]:
    found = {}
    for number, line in enumerate(record.read_text().splitlines(), 1):
        if line.startswith("#"):  # sha256sum passes over these as well
            continue
        value, _, name = line.partition("  ")
        if len(value) != 64 or not name:
            raise WrongChecksum(f"'{record}' line {number} is not a checksum and a name: {line[:80]!r}")
        found[name.removeprefix("./")] = value
    return found


@dataclass(frozen=True)
class Compared:
    """What a look at every recorded file found. Each is a list of names."""

    changed: list[str]
    missing: list[str]
    extra: list[str]
    files: int

    @property
    def good(self) -> bool:
        return not self.changed and not self.missing


def compare(path: Path, expected: dict[str, str]) -> Compared:
    found = sums(path)
    return Compared(
        changed=[name for name, value in expected.items() if name in found and found[name] != value],
        missing=[name for name in expected if name not in found],
        extra=[name for name in found if name not in expected],
        files=len(found),
    )
