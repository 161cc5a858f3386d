"""Decide what a column becomes from a summary of each part of a table: the same code for one table and for many sites.

A summary holds no more than the decision needs (`Observed`). A table that lies in one place is one part; in a
deployment each site summarises its own part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from farfield.tasks.task import TaskKind
from farfield.tasks.user_data.preparation import Column

#: A text column with more levels than this, or with a level for every second row, is a name or an id, not a category.
MOST_LEVELS = 100
FEW_LEVELS = 20

#: "category" is a column that was said to be one; "text" one that looks like it.
Found = Literal["number", "boolean", "text", "category", "date", "other", "nothing"]
#: Why a column is left out.
Reason = Literal["empty", "odd", "constant", "names"]
Count = Annotated[int, Field(ge=0, le=2**53)]
Names = tuple[str, ...]


class StrictContent(BaseModel):
    """Plain content that may come from another machine. Strict, because that machine may be outdated or hostile."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Observed(StrictContent):
    """The summary of a column in one part of a table."""

    name: str
    found: Found
    #: Rows with a value, and without.
    known: Count
    missing: Count
    #: How many different texts there are; 0 for what is no text.
    distinct: Count = 0
    #: The different values as text: of texts and categories, of true and false, of numbers that are 0 or 1 only or all
    #: the same. None where they are not disclosed: of any other numbers, and of texts that look like names or ids.
    levels: Names | None = ()

    @property
    def constant(self) -> bool:
        return self.levels is not None and len(self.levels) == 1 and not self.missing


class ObservedLabel(StrictContent):
    """The summary of the label in one part of a table: the classes, or only that it is a number."""

    name: str
    found: Literal["number", "boolean", "text"]
    #: Whether it is a number, whole in every row.
    whole: bool
    #: The different values; None for numbers that are not whole, or are more than a few.
    levels: Names | None


def in_order(texts: Iterable[str]) -> tuple[str, ...]:
    """Different texts: numbers by their size, then the others by the alphabet.

    The order of some of them does not depend on which others there are.
    """
    return tuple(sorted(set(texts), key=_place))


def _place(text: str) -> tuple[bool, float, str]:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # The text parts 1 from 1.0, so that the order is always the same.
    return (True, 0.0, text) if math.isnan(number) else (False, number, text)


def too_many(levels: int, known: int) -> bool:
    """Whether so many different texts in so many rows are names or ids."""
    return levels > MOST_LEVELS or (levels > FEW_LEVELS and 2 * levels > known)


def all_levels(parts: Iterable[Observed | ObservedLabel]) -> tuple[str, ...] | None:
    """Return the levels of all parts together; None if one part does not disclose its levels."""
    levels: set[str] = set()
    for part in parts:
        if part.levels is None:
            return None
        levels.update(part.levels)
    return in_order(levels)


def decide(parts: Sequence[Observed]) -> tuple[Column | None, Reason | None]:
    """A column of parts that fit together, or why there is none."""
    name, found = parts[0].name, {part.found for part in parts} - {"nothing"}
    missing, known = any(part.missing for part in parts), sum(part.known for part in parts)
    levels = all_levels(parts)
    if not found:
        return None, "empty"
    if found <= {"date", "other", "text"} and found != {"text"}:
        return None, "odd"
    if "boolean" in found and levels is not None:
        # Where one part has 0 and 1 and another true and false, they are the same two values.
        levels = in_order({"False": "0", "True": "1"}.get(level, level) for level in levels)
    if levels is not None and len(levels) == 1 and not missing:
        return None, "constant"
    if found <= {"text", "category"}:
        if levels is None or ("category" not in found and too_many(len(levels), known)):
            return None, "names"
        return Column(name, "category", levels, missing), None
    if "boolean" in found or levels == ("0", "1"):
        return Column(name, "boolean", missing=missing), None
    return Column(name, "number", missing=missing), None


def label_kind(parts: Sequence[ObservedLabel]) -> TaskKind:
    """Text, true and false and a few different whole numbers are classes; other numbers are a regression."""
    if any(part.found != "number" for part in parts):
        return "classification"
    levels = all_levels(parts) if all(part.whole for part in parts) else None
    return "classification" if levels is not None and len(levels) <= FEW_LEVELS else "regression"
