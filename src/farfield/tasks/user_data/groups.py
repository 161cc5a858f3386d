"""Rows that belong together, such as the visits of one patient: all of them train, or all of them validate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from farfield.tasks.user_data.columns import as_text
from farfield.tasks.user_data.table_file import rows_named

if TYPE_CHECKING:
    from pandas import Series

Codes = NDArray[np.int64]


def group_codes(texts: Series) -> Codes:
    """A number for each group; a row without a name is a group of its own."""
    import pandas as pd

    found, names = pd.factorize(texts)
    codes: Codes = found.astype(np.int64)
    alone = np.flatnonzero(codes < 0)
    codes[alone] = len(names) + np.arange(len(alone))
    return codes


def groups_of_column(column: Series, name: str, notes: list[str]) -> tuple[Codes, Series]:
    """A number a row of a table, the same for the rows of a group, and the groups' names as text."""
    texts = as_text(column)
    codes = group_codes(texts)
    alone = column.index[texts.isna()]
    if len(alone):
        notes.append(f"the group '{name}' is missing in {rows_named(alone)}: each of these stands for itself")
    if len(np.unique(codes)) == len(codes):
        notes.append(f"the group '{name}' is another in every row, so it groups nothing")
    return codes, texts


def group_notes(
    what: str, codes: Codes, owner: Codes, domains: Sequence[str], name_of: Callable[[int], str]
) -> list[str]:
    """What groups cannot mend: those with rows in several domains. `owner` is the number of a row's domain."""
    pairs = np.unique(np.stack([codes, owner]), axis=1)
    groups, count = np.unique(pairs[0], return_counts=True)
    shared = groups[count > 1]
    if not len(shared):
        return []
    first = int(shared[0])
    where = " and ".join(f"'{domains[number]}'" for number in pairs[1][pairs[0] == first][:2])
    return [
        f"{len(shared)} of {len(groups)} groups of {what} have rows in two or more domains, the first "
        f"'{name_of(first)}' in {where}: when one of these is held out, the group was among the sources"
    ]
