"""Verify the chain of an audit log: name the first entry that does not fit, and say what can and cannot be known.

A chain shows a changed, inserted, removed or reordered entry. It does not show that the last entries were cut off,
unless a later head is known: from the log's own head file, which whoever cuts the log can change as well, from a copy
that was kept elsewhere, or from the log of the other side. Nor does it show a log that its owner has written anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farfield.deployment.audit.log import FILE, FOLDER, HEAD, OPENED, RECOVERED, Head, is_entry, sha256_of
from farfield.errors import UserError

#: The most bytes of a line that are read at once: a damaged file may have no end of a line.
LONGEST_LINE = 1 << 20


@dataclass
class Verified:
    """What is known of a log."""

    folder: Path
    #: Entries that fit, from the first one on.
    entries: list[dict[str, Any]] = field(default_factory=list)
    head: Head | None = None
    #: What is wrong, one sentence each; empty for an intact log.
    problems: list[str] = field(default_factory=list)
    #: What an operator should know and nothing is wrong with.
    notes: list[str] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        return not self.problems

    @property
    def side(self) -> str:
        """Whose log it is: "server" or "site"."""
        return str(self._first("side"))

    @property
    def name(self) -> str:
        return str(self._first("name"))

    def _first(self, key: str) -> Any:
        return self.entries[0].get(key, "") if self.entries else ""


def find_log(given: Path) -> Path:
    """Return the folder of the audit log that a path names: the log's own, a server's, a site's or its state's."""
    candidates = [given, given / FOLDER, *sorted(given.glob(f".farfield/*/{FOLDER}"))]
    found = [path for path in candidates if path.is_dir() and _files(path)]
    if not found:
        raise UserError(
            f"there is no audit log in '{given}'; give the output folder of a server, or a site's folder or its state "
            "folder"
        )
    if len(found) > 1:
        names = ", ".join(f"'{path}'" for path in found)
        raise UserError(f"'{given}' holds several audit logs: {names}; give one of them")
    return found[0]


def _files(folder: Path) -> list[Path]:
    """Return the files of a log, also those that were moved away under names that begin alike."""
    stem = FILE.partition(".")[0]
    return [path for path in sorted(folder.glob(f"{stem}*")) if path.is_file() and ".jsonl" in path.name]


def verify(folder: Path, head: str | None = None) -> Verified:
    """Read a log and check its chain. `head` is the hash of an entry that the log must hold."""
    found = Verified(folder)
    lines = ((path, number, line) for path in _in_order(folder) for number, line in enumerate(_lines(path), 1))
    written = Head.read(folder / HEAD)
    last: Head | None = None
    torn: list[tuple[str, str]] = []
    #: The entries of the two heads, if the log has them.
    at_head, at_asked = False, False
    for path, number, line in lines:
        where = f"line {number} of '{path.name}'"
        sha256 = sha256_of(line)
        if not is_entry(line):
            torn.append((sha256, where))
            continue
        entry = json.loads(line)
        if torn:
            claimed = entry.get("torn") if entry.get("kind") == RECOVERED else None
            if claimed != [of for of, _ in torn]:
                found.problems.append(f"{torn[0][1]} is no entry, and no entry after it says that a kill has cut it")
                break
            found.notes.append(f"{torn[0][1]} was cut by a kill in the middle of a write, as the next entry says")
            torn = []
        wrong = _misfit(entry, last)
        if wrong:
            found.problems.append(f"entry {entry['n']} ({where}) {wrong}")
            break
        last = Head(entry["n"], sha256)
        at_head = at_head or last == written
        at_asked = at_asked or sha256 == (head or "").lower()
        found.entries.append(entry)
    found.head = last
    if torn and found.intact:
        found.notes.append(f"{torn[0][1]}, the last, is not finished: a kill in the middle of a write, or a cut")
    if found.intact:
        _check_end(found, written, at_head)
        if head is not None and not at_asked:
            found.problems.append(f"no entry has the hash {head}: the log was cut before it, or written anew")
    return found


def _misfit(entry: dict[str, Any], last: Head | None) -> str:
    """Say why an entry does not follow another; nothing if it does."""
    if last is None:
        if entry["n"] != 1:
            return "is the first that is here: the files with the entries before it are missing"
        return "" if entry.get("kind") == OPENED else "does not open a log, as the first entry must"
    if entry.get("previous") != last.sha256:
        return f"does not follow entry {last.number}: one of the two was changed, or entries were removed or inserted"
    return "" if entry["n"] == last.number + 1 else f"follows entry {last.number} and has the wrong number"


def _check_end(found: Verified, written: Head | None, there: bool) -> None:
    """Check the end of a chain that fits by the log's own head; `there` says whether the log has that entry."""
    last = found.head
    if last is None:
        found.problems.append("the log has no entry")
        return
    if written is None:
        found.notes.append(f"the file '{HEAD}' is missing or damaged, so a cut at the end cannot be seen by it")
    elif written.number > last.number:
        found.problems.append(
            f"the log ends with entry {last.number}, and its head is entry {written.number}: the end was cut off"
        )
    elif not there:
        found.problems.append(f"the log's head names another entry {written.number} than the log has")


def _in_order(folder: Path) -> list[Path]:
    """Return the log's files in the order of their first entries; those without one are last."""

    def first(path: Path) -> tuple[float, str]:
        for line in _lines(path):
            if is_entry(line):
                return float(json.loads(line)["n"]), path.name
        return float("inf"), path.name

    return sorted(_files(folder), key=first)


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while line := file.readline(LONGEST_LINE):
            yield line.removesuffix(b"\n")
