"""Check the statistics that a site sends for the preparation against what it declared when it joined."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from farfield.errors import UserError
from farfield.federation.federation import FederationError
from farfield.tasks.task import Preparation
from farfield.tasks.user_data.column_statistics import Moments, Numbers
from farfield.tasks.user_data.preparation import TablePreparation

#: What rounding may add to a standard deviation that a median lies within.
ROUNDING = 1e-6


def check_statistics(preparation: Preparation, told: Any, site: str, rows: int) -> None:
    """Raise FederationError, which names the site and the figure, for statistics that no rows of it can have.

    `rows` are the rows with which the site joined. A run cannot begin without one of its sites, so this ends it.
    """
    try:
        _check(preparation, told, rows)
    except (UserError, ValueError, TypeError, KeyError) as error:
        raise FederationError(
            f"the statistics of site '{site}' cannot be: {error}; look into it, or start without this site"
        ) from None


def _check(preparation: Preparation, told: Any, rows: int) -> None:
    if not isinstance(told, Mapping):
        raise UserError("they are no statistics")
    if not isinstance(preparation, TablePreparation):
        preparation.merge([told])
        return
    read = preparation.read_statistics(told)
    if read.rows > rows:
        raise UserError(f"'rows' is {read.rows}, and the site joined with {rows} rows")
    for column, entry in zip(preparation.columns, read.columns, strict=True):
        if isinstance(entry, Moments):
            _check_moments(f"column '{column.name}'", entry)
    if read.label is not None:
        _check_moments("the label", read.label)


def _check_moments(what: str, told: Moments) -> None:
    deviation = math.sqrt(told.squares / told.known) if told.known else 0.0
    if not told.known and (told.mean or told.squares):
        raise UserError(f"{what} has a mean of no values")
    if not isinstance(told, Numbers):
        return
    if not told.varies and told.squares > 0:
        raise UserError(f"{what} does not vary, and its deviations from the mean are not 0")
    # The median of any numbers lies within one standard deviation of their mean.
    if told.known and abs(told.median - told.mean) > deviation + ROUNDING * (deviation + abs(told.mean)):
        raise UserError(f"{what} has the median {told.median:g}, over a standard deviation from its mean {told.mean:g}")
