"""Is what lies in the data folder what it should be: checksums as recorded, examples and classes as published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from farfield.errors import UserError
from farfield.tasks.data_folder.checksums import compare, recorded
from farfield.tasks.data_folder.class_counts import class_differences
from farfield.tasks.data_folder.data_set import DataSet
from farfield.tasks.data_folder.store import locate

#: Classes whose counts differ that a line names before it counts the others.
SHOWN = 4


@dataclass(frozen=True)
class Checked:
    """`state` is 'good', 'part' (fewer examples than published), 'other' (counts differ), 'damaged' or 'absent'."""

    name: str
    path: Path | None
    state: str
    checksums: str
    counts: str
    found: dict[str, int]


def check(known: DataSet) -> Checked:
    path = known.here()
    if path is None:
        return _gone(known)
    try:
        good, checksums = _checksums(path)
    except UserError as error:  # one bad record must not end the check of all others
        return Checked(known.name, path, "damaged", str(error), "", {})
    try:
        found = known.count(path) if known.count is not None else {}
    except UserError as error:
        return Checked(known.name, path, "damaged", checksums, str(error), {})
    state, counts = _counts(known, found)
    if state == "good":
        try:
            differing = class_differences(known.name, path)
        except UserError as error:
            return Checked(known.name, path, "damaged", checksums, str(error), found)
        if differing:
            more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
            state, counts = "other", f"labels differ: {'; '.join(differing[:SHOWN])}{more}"
    return Checked(known.name, path, state if good else "damaged", checksums, counts, found)


def _gone(known: DataSet) -> Checked:
    """Nothing is here; if it was recorded once, somebody should know."""
    record = locate(*(f"{place}.sha256" for place in known.places))
    if record is None:
        return Checked(known.name, None, "absent", "", "", {})
    return Checked(known.name, None, "damaged", f"'{record}' records it, and it is not there any more", "", {})


def _checksums(path: Path) -> tuple[bool, str]:
    expected = recorded(path)
    if expected is None:
        return True, "no record"
    compared = compare(path, expected)
    words = [
        f"{len(names)} {what} ({names[0]}{', …' if len(names) > 1 else ''})"
        for what, names in (("changed", compared.changed), ("missing", compared.missing), ("new", compared.extra))
        if names
    ]
    return compared.good, "; ".join(words) or f"{compared.files} file{'s' if compared.files > 1 else ''} as recorded"


def _counts(known: DataSet, found: dict[str, int]) -> tuple[str, str]:
    if not known.published:
        return "good", "nothing to compare with"
    pairs = [(name, found.get(name, 0), want) for name, want in known.published.items()]
    differing = [f"{name} {have:,} of {want:,}" for name, have, want in pairs if have != want]
    if not differing:
        return "good", "as published"
    return ("part" if all(have <= want for _, have, want in pairs) else "other"), ", ".join(differing)
