"""What one domain tells of its training rows, and how that is merged: the rows themselves stay where they are.

In a federation no process sees the joined table, so every statistic is made of parts that a site can compute alone. One
machine that has all rows goes the same way, and so gets the same bits.

    counts             add up
    mean, deviations   Chan, Golub and LeVeque (1983), with exactly rounded sums: the order of the parts changes nothing
    varies             some part varies, or two parts that do not have different values
    median             the weighted median of the parts' medians, weighed by their rows with a value

A median is no sum. The exact one of the joined rows takes several exchanges, each with counts that tell more of single
rows; the weighted one takes none, is exact for one part, and lies where at least a quarter of the joined rows are on
either side. It only stands in for missing values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farfield.errors import UserError

Matrix = NDArray[np.float64]
#: Numbers further out are taken as this one: their squares, added up over rows and sites, must stay numbers.
OUTERMOST = 1e140

Count = Annotated[int, Field(ge=0, le=2**53)]
Real = Annotated[float, Field(ge=-OUTERMOST, le=OUTERMOST)]
Squares = Annotated[float, Field(ge=0, le=OUTERMOST**2 * 2**56)]


class PreparationError(UserError):
    """Rows, statistics or a file that a preparation cannot use, in one sentence."""


class DomainStatistics(BaseModel):
    """Plain numbers from a site. Strict, because it may be another version's, or hostile."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Moments(DomainStatistics):
    """How many rows have a value, its mean, and the sum of squared deviations from that."""

    known: Count
    mean: Real = 0.0
    squares: Squares = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation (of these rows, not an estimate), 1 where it would be 0."""
        return math.sqrt(self.squares / self.known) or 1.0 if self.known else 1.0


class Numbers(Moments):
    """A column of numbers."""

    median: Real = 0.0
    varies: bool = False


class Booleans(DomainStatistics):
    """A column of true and false."""

    known: Count
    true: Count = 0


class Levels(DomainStatistics):
    """A column of categories: which levels are there, and whether some row has none. How often stays at the site."""

    seen: list[bool]
    missing: bool


def moments_of(values: Matrix) -> Moments:
    return Moments(**_moments(values))


def numbers_of(values: Matrix) -> Numbers:
    known = values[~np.isnan(values)].clip(-OUTERMOST, OUTERMOST)
    if not len(known):
        return Numbers(known=0)
    return Numbers(**_moments(known), median=float(np.median(known)), varies=bool(known.min() < known.max()))


def booleans_of(values: Matrix) -> Booleans:
    return Booleans(known=int((~np.isnan(values)).sum()), true=int((values == 1).sum()))


def levels_of(values: Matrix, levels: int) -> Levels:
    present = np.unique(values[values >= 0]).astype(np.int64)
    return Levels(seen=np.isin(np.arange(levels), present).tolist(), missing=bool(np.isnan(values).any()))


def _moments(values: Matrix) -> dict[str, Any]:
    # A mean of equal values may be off by a bit, and parts that do not vary are compared by their means.
    mean = float(values[0] if values.min() == values.max() else values.mean())
    return {"known": len(values), "mean": mean, "squares": float(((values - mean) ** 2).sum())}


def merge_moments(parts: Iterable[Moments]) -> Moments:
    parts = [part for part in parts if part.known]
    if not parts:
        return Moments(known=0)
    known = sum(part.known for part in parts)
    # Relative to one of the means, so that equal means (and a single part's) come out as they are.
    low = min(part.mean for part in parts)
    mean = low + math.fsum(part.known * (part.mean - low) for part in parts) / known
    between = (part.known * (part.mean - mean) * (part.mean - mean) for part in parts)
    squares = math.fsum((*(part.squares for part in parts), *between))
    return Moments.model_construct(known=known, mean=mean, squares=squares)


def merge_numbers(parts: Iterable[Numbers]) -> Numbers:
    parts = [part for part in parts if part.known]
    varies = any(part.varies for part in parts) or len({part.mean for part in parts}) > 1
    median = weighted_median([(part.median, part.known) for part in parts]) if parts else 0.0
    return Numbers.model_construct(**merge_moments(parts).model_dump(), median=median, varies=varies)


def merge_booleans(parts: Sequence[Booleans]) -> Booleans:
    known, true = sum(part.known for part in parts), sum(part.true for part in parts)
    return Booleans.model_construct(known=known, true=true)


def merge_levels(parts: Sequence[Levels]) -> Levels:
    seen = [any(flags) for flags in zip(*(part.seen for part in parts), strict=True)]
    return Levels(seen=seen, missing=any(part.missing for part in parts))


def weighted_median(weighed: Iterable[tuple[float, int]]) -> float:
    """The value that half of the weight lies below; the middle of two where exactly half does."""
    ordered = sorted(weighed)
    total, below = sum(weight for _, weight in ordered), 0
    for number, (value, weight) in enumerate(ordered):
        below += weight
        if 2 * below == total:
            return (value + ordered[number + 1][0]) / 2
        if 2 * below > total:
            return value
    raise ValueError("a median needs at least one value")


T = TypeVar("T", bound=DomainStatistics)


def read_statistics(model: type[T], entry: object, what: str) -> T:
    """What a site sent, checked; `what` names it in the refusal."""
    try:
        return model.model_validate(dict(entry) if isinstance(entry, Mapping) else entry)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f" '{part}'" for part in first["loc"][:1])
        raise PreparationError(
            f"the statistics of {what} cannot be used:{place} {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None
