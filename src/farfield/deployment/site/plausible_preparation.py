"""Refuse a preparation that cannot have been merged from statistics that include this site's own.

A preparation is chosen by the server, and one that stretches a column or hides the others makes single rows visible.
Merged statistics contain the site's own, which bounds them: over N rows of all sites, of which n are here, a column's
squared deviation is at least n/N times this site's mean squared distance from the merged mean; and what varies here
varies in the merged rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from farfield.deployment.schema.site_schema import AgreedSchema
from farfield.federation.refusal import Refused
from farfield.tasks.task import Fitted
from farfield.tasks.user_data.bag_of_words import FittedWords
from farfield.tasks.user_data.preparation import FittedColumn, FittedTable

#: The rows of all sites count for at most this many times the site's own, whatever the server says.
MOST_ROWS_RATIO = 10_000
#: For sums that are added in another order elsewhere.
SLACK = 0.99


def check_preparation(agreed: AgreedSchema, fitted: Fitted, x: Tensor, y: Tensor) -> None:
    """Refuse a preparation that does not fit the raw training rows of this site."""
    preparation = agreed.preparation
    if preparation is None or not len(x):
        return
    own = preparation.statistics(x, y)
    if isinstance(fitted, FittedWords):
        if fitted.words != agreed.words or not _covers(fitted.seen, own["seen"]):
            raise Refused("preparation")
        return
    if not isinstance(fitted, FittedTable) or tuple(f.column for f in fitted.columns) != tuple(agreed.columns):
        raise Refused("preparation")
    rows = min(sum(agreed.sites.values()), MOST_ROWS_RATIO * len(x))
    for told, column in zip(own["columns"], fitted.columns, strict=True):
        if not _can_include(column, told, len(x), max(rows, len(x))):
            raise Refused("preparation")
    label = own["label"]
    if label is not None and not _spread_fits(fitted.label_mean, fitted.label_scale, label, max(rows, len(x))):
        raise Refused("preparation")


def _can_include(column: FittedColumn, told: dict[str, Any], own_rows: int, rows: int) -> bool:
    if not all(map(math.isfinite, (column.fill, column.mean, column.scale))) or column.scale <= 0:
        return False
    if column.column.kind == "category":
        shown = [*told["seen"], *([told["missing"]] if column.column.missing else [])]
        return _covers(column.live, shown)
    gap = (0 < told["known"] < own_rows,) if column.column.missing else ()
    if column.column.kind == "boolean":
        return column.fill in (0.0, 1.0) and _covers(column.live, [0 < told["true"] < told["known"], *gap])
    return _covers(column.live, [told["varies"], *gap]) and _spread_fits(column.mean, column.scale, told, rows)


def _covers(merged: Sequence[bool], own: Sequence[bool]) -> bool:
    """Return whether everything that this site has shown is in what was merged."""
    return len(merged) == len(own) and all(live or not shown for shown, live in zip(own, merged, strict=True))


def _spread_fits(mean: float, scale: float, told: dict[str, Any], rows: int) -> bool:
    if not math.isfinite(mean) or not math.isfinite(scale) or scale <= 0:
        return False
    own = told["squares"] + told["known"] * (told["mean"] - mean) ** 2
    return bool(scale**2 * rows >= SLACK * own)
