"""A disagreement between the schemas of sites: one sentence, and the sites that have to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from farfield.errors import UserError

T = TypeVar("T")
#: How many names or values a sentence shows before it counts the others.
SHOWN = 3


class SchemaConflict(UserError):
    """Sites whose data do not fit together. `sites` have to mend it, in `column` if it is one column."""

    def __init__(self, message: str, sites: Iterable[str] = (), column: str | None = None) -> None:
        super().__init__(message)
        self.sites = tuple(sites)
        self.column = column


def need_same(values: Mapping[str, T], described: Callable[[T], str], way_out: str) -> T:
    """Return the value that all sites have. Raises SchemaConflict, with each value `described`, if they differ."""
    groups: dict[str, list[str]] = {}
    for site, value in values.items():
        groups.setdefault(described(value), []).append(site)
    if len(groups) == 1:
        return next(iter(values.values()))
    # The fewer have to mend it; of two groups of one size, the later one.
    (common, others), *_, (differing, sites) = sorted(groups.items(), key=lambda group: -len(group[1]))
    raise SchemaConflict(f"{at(sites)} {differing}, {at(others)} {common}; {way_out}", sites)


def at(sites: Sequence[str]) -> str:
    """'at 'zurich'', 'at 'oslo' and 'zurich'', 'at 7 sites'."""
    return "at " + (quoted(sites) if len(sites) < SHOWN else f"{len(sites)} sites")


def quoted(names: Sequence[str]) -> str:
    """''a', 'b' and 'c'', or the first few and how many more."""
    shown = [f"'{name}'" for name in names[:SHOWN]]
    if len(names) > SHOWN:
        return f"{', '.join(shown)} and {len(names) - SHOWN} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
