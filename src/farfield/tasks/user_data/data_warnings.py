"""What a reader of a table would doubt: two spellings of one name, ids among the features, columns that know the label.

Nothing is changed here. Each doubt is a note that names the column and what to do, because only the user can tell.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from farfield.tasks.note_prefixes import COLUMN_LEAK
from farfield.tasks.user_data.column_decision import FEW_LEVELS
from farfield.tasks.user_data.column_statistics import Matrix
from farfield.tasks.user_data.columns import IDS_FROM
from farfield.tasks.user_data.preparation import Column
from farfield.tasks.user_data.table_file import rows_named

if TYPE_CHECKING:
    from pandas import DataFrame

#: A column whose order tells two classes apart so well is worth a question (AUROC; rank correlation for a number).
TELLS = 0.99
TELLS_NUMBER = 0.999
#: With fewer rows of a class, order alone proves nothing.
LEAST_OF_CLASS = 5
#: With fewer rows in a domain, one row more or less moves its accuracy by more than five points.
SMALL = 20
NAMED = 3
#: With fewer values than this nobody can say which of them are far from the others.
LEAST_KNOWN = 20

Floats = NDArray[np.float64]


def folded(name: str) -> str:
    """A name without what people mistype: case, spaces, accents."""
    plain = unicodedata.normalize("NFKD", name)
    return " ".join("".join(c for c in plain if not unicodedata.combining(c)).casefold().split())


def spelling_notes(what: str, counts: Mapping[str, int], unit: str = "rows") -> list[str]:
    """Names that differ only in case, spaces or accents, with the rows that each has."""
    alike: dict[str, list[str]] = {}
    for name in counts:
        alike.setdefault(folded(name), []).append(name)
    groups = [names for names in alike.values() if len(names) > 1]
    shown = [" and ".join(f"'{name}' ({counts[name]} {unit})" for name in names) for names in groups[:NAMED]]
    more = [f"and {len(groups) - NAMED} more such names"] * (len(groups) > NAMED)
    if not groups:
        return []
    return [
        f"{what} has {'; '.join([*shown, *more])}: they differ only in case, spaces or accents and are kept apart; if "
        "they are the same, write them alike"
    ]


def small_notes(sizes: Mapping[str, int]) -> list[str]:
    """Domains on which an accuracy says little."""
    small = [name for name, size in sizes.items() if size < SMALL]
    shown = [f"'{name}' has {sizes[name]} rows (one is {100 / sizes[name]:.1f} points)" for name in small[:NAMED]]
    if not small:
        return []
    more = f", and so for {len(small) - NAMED} more" if len(small) > NAMED else ""
    return [
        f"domain {', '.join(shown)}{more}: held out, its accuracy is as coarse as that, and it weighs as much in the "
        "mean over domains as any other"
    ]


def one_class_notes(alone: Mapping[str, tuple[str, int]]) -> list[str]:
    """Domains of a single class, by name: the class and the rows."""
    if not alone:
        return []
    shown = [f"'{name}' ('{only}' in all its {rows} rows)" for name, (only, rows) in list(alone.items())[:NAMED]]
    rest = f": held out, {'its' if len(alone) == 1 else 'their'} accuracy says little and AUROC is not defined"
    if len(alone) == 1:
        only, rows = next(iter(alone.values()))
        return [f"domain '{next(iter(alone))}' has one class only ('{only}' in all its {rows} rows){rest}"]
    more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
    return [f"{len(alone)} domains have one class only, {', '.join(shown)}{more}{rest}"]


#: Names of columns that say whose row it is.
_WHO = re.compile(
    r"(^|[^a-z])(patient|person|subject|participant|case|client|customer|animal|mrn|id|nr|no|key)([^a-z]|$)"
)
#: With so many rows per value on average, a value is a kind of thing rather than one of them.
MOST_PER_VALUE = 20


def patient_notes(frame: DataFrame, features: Sequence[str], categorical: Sequence[str]) -> list[str]:
    """Columns that say whose row it is (a patient) and repeat: such rows should train or validate together."""
    notes = []
    for name in features:
        column = frame[name].dropna()
        values, rows = column.nunique(), len(column)
        if name in categorical or rows < IDS_FROM or not FEW_LEVELS < values < rows or rows > MOST_PER_VALUE * values:
            continue
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|id$", lambda m: " " + m.group(), name).casefold()
        texts = column.dtype.kind not in "biufM"
        numbers = column.dtype.kind in "iu" or (column.dtype.kind == "f" and not bool((column % 1).any()))
        if not _WHO.search(words) or not (texts or numbers):
            continue
        again = int(column.duplicated(keep=False).sum())
        notes.append(
            f"column '{name}' says whose row it is ({values} different values, {again} rows share one with another "
            f"row): keep such rows together with --group '{name}', or leave it out with --drop '{name}'"
        )
    return notes


def lacking_notes(present: Mapping[str, NDArray[np.int64]], classes: Sequence[str]) -> list[str]:
    """Classes that a domain lacks: allowed, because sites differ, but nobody should find out from the figures."""
    lacking = []
    for domain, codes in present.items():
        absent = [name for code, name in enumerate(classes) if code not in codes]
        if absent and len(codes) > 1:  # a domain of one class has a note of its own
            nor = f" (nor {len(absent) - 1} more)" if absent[1:] else ""
            lacking.append(f"'{domain}' has no '{absent[0]}'{nor}")
    if not lacking:
        return []
    more = f", and so for {len(lacking) - NAMED} more domains" if len(lacking) > NAMED else ""
    return [f"not every domain has every class: {', '.join(lacking[:NAMED])}{more}"]


def gap_notes(x: Matrix, columns: Sequence[Column], rows_of: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """Columns that a domain has no value of, so that a gap tells the domain."""
    notes = []
    for number, column in enumerate(columns):
        empty = [name for name, rows in rows_of.items() if np.isnan(x[rows, number]).all()]
        if empty:
            shown = ", ".join(f"'{name}'" for name in empty[:NAMED])
            more = f" and {len(empty) - NAMED} more" if len(empty) > NAMED else ""
            notes.append(
                f"column '{column.name}' has no value in any row of {shown}{more}: a model can tell the domain by the "
                f"gap; if that is no part of the question, leave it out with --drop '{column.name}'"
            )
    return notes


def far_notes(x: Matrix, columns: Sequence[Column], index: Sequence[int]) -> list[str]:
    """Numbers so far from the others of their column that they alone decide its mean and deviation.

    Far is a hundred times the spread of the middle half, or twenty where one value occurs again and again: 999 for
    "not known", say.
    """
    notes = []
    for number, column in enumerate(columns):
        values = x[:, number]
        known = values[~np.isnan(values)]
        if column.kind != "number" or len(known) < LEAST_KNOWN:
            continue
        low, middle, high = np.percentile(known, (25, 50, 75))
        away = np.abs(values - middle) / (high - low) if high > low else np.zeros_like(values)
        far = away > 100
        for code in np.unique(values[away > 20]) if (away > 20).any() else ():
            far |= (values == code) & ((values == code).sum() >= 3)
        if far.any():
            rows = np.flatnonzero(far)
            where = rows_named(np.asarray(index)[rows])
            notes.append(
                f"column '{column.name}' has {values[rows[0]]:g} in {where}, far from the others (half of them lie "
                f"between {low:g} and {high:g}): such cells decide how the column is scaled; mend them, or empty "
                "them if they stand for a missing value"
            )
    return notes


def id_columns(x: Matrix, columns: Sequence[Column], rows_of: Mapping[str, NDArray[np.int64]]) -> dict[str, bool]:
    """Columns of whole numbers that never repeat; True where that holds in the whole table, False in each domain."""
    found = {}
    for number, column in enumerate(columns):
        values = x[:, number]
        if column.kind != "number" or not _could_be_ids(values):
            continue
        if _distinct(values):
            found[column.name] = True
        elif max(map(len, rows_of.values())) >= IDS_FROM and all(_distinct(values[rows]) for rows in rows_of.values()):
            found[column.name] = False
    return found


def id_notes(ids: Mapping[str, bool], said: Sequence[str]) -> list[str]:
    """A note for each id that no other note has named yet."""
    notes = []
    for name, whole in ids.items():
        if not any(f"'{name}'" in note for note in said):
            where = "in every row" if whole else "in every row of a domain"
            notes.append(
                f"column '{name}' has another whole number {where}; if it is an id, leave it out with --drop '{name}'"
            )
    return notes


def leak_notes(
    x: Matrix,
    columns: Sequence[Column],
    label: str,
    classes: Sequence[str],
    y: NDArray[np.generic],
    said: Sequence[str],
) -> list[str]:
    """Numbers (and gaps) that all but tell the label."""
    notes = []
    for number, column in enumerate(columns):
        if any(f"'{column.name}' tells the label" in note for note in said):
            continue
        values = x[:, number]
        told = _tells_class(values, column, classes, y) if classes else _tells_number(values, column, y)
        if told:
            notes.append(
                f"{COLUMN_LEAK}column '{column.name}' {told}; if it was recorded after the label '{label}' was known, "
                f"leave it out with --drop '{column.name}'"
            )
    return notes


def _tells_class(values: Floats, column: Column, classes: Sequence[str], y: NDArray[np.generic]) -> str | None:
    known = ~np.isnan(values)
    for code, name in enumerate(classes):
        positive = y == code
        against = f"'{classes[1 - code]}'" if len(classes) == 2 else "the other classes"
        if min(positive.sum(), (~positive).sum()) < LEAST_OF_CLASS:
            continue
        gaps = (~known[positive]).mean(), (~known[~positive]).mean()
        if column.missing and abs(gaps[0] - gaps[1]) >= TELLS:
            side, other = (f"'{name}'", against) if gaps[0] < gaps[1] else (against, f"'{name}'")
            return f"has values almost only in rows of {side} and next to none in those of {other}"
        here = positive[known]
        if column.kind == "category" or min(here.sum(), (~here).sum()) < LEAST_OF_CLASS:
            continue
        area = auroc(values[known], here)
        if max(area, 1 - area) >= TELLS:
            side = "above" if area > 0.5 else "below"
            well = f"AUROC {max(area, 1 - area):.3f}"
            return f"almost tells the class: rows of '{name}' lie {side} those of {against} ({well})"
    return None


def _tells_number(values: Floats, column: Column, y: NDArray[np.generic]) -> str | None:
    known = ~np.isnan(values)
    if column.kind != "number" or known.sum() < IDS_FROM:
        return None
    a, b = ranks(values[known]), ranks(y[known].astype(np.float64))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    correlation = float(np.corrcoef(a, b)[0, 1])
    if abs(correlation) < TELLS_NUMBER:
        return None
    return f"goes with the label almost exactly (rank correlation {correlation:.4f})"


def auroc(values: Floats, positive: NDArray[np.bool_]) -> float:
    """How well the order of the values tells the rows apart; ties count half. Both sides have rows."""
    n = int(positive.sum())
    return float((ranks(values)[positive].sum() - n * (n + 1) / 2) / (n * (len(values) - n)))


def ranks(values: Floats) -> Floats:
    """Ranks from 1 on, equal values sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: Floats = np.cumsum(counts) - (counts - 1) / 2
    return middle[inverse]


def _could_be_ids(values: Floats) -> bool:
    known = values[~np.isnan(values)]
    return len(known) >= IDS_FROM and not bool((known % 1).any())


def _distinct(values: Floats) -> bool:
    known = values[~np.isnan(values)]
    return len(np.unique(known)) == len(known)
