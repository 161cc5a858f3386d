"""Spellings of yes and no in a label: Yes, y, TRUE, ja, oui and 1 are one class, and no, N, false, nein, non and 0 are.

Case and blanks do not count. 0 and 1 are such words only beside one of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farfield.tasks.user_data.columns import as_levels

if TYPE_CHECKING:
    from pandas import Series

NO = ("no", "n", "false", "nein", "non", "falsch", "faux")
YES = ("yes", "y", "true", "ja", "j", "oui", "wahr", "vrai")


def yes_or_no(text: str) -> bool | None:
    """Whether a cell says yes or no; None for anything else."""
    word = text.strip().casefold()
    return True if word in (*YES, "1") else False if word in (*NO, "0") else None


def classes_in_order(classes: Sequence[str]) -> tuple[str, ...]:
    """Classes with yes after no: the alphabet has ja before nein, and yes is class 1 in every language."""
    answers = [yes_or_no(name) for name in classes]
    return (classes[1], classes[0]) if answers == [True, False] else tuple(classes)


def as_classes(texts: Series, classes: Sequence[str]) -> Series:
    """Labels of other rows, with other spellings of yes and no as the classes that a model has for them."""
    answers = {yes_or_no(name): name for name in classes}
    if not {True, False} <= set(answers) or all(name.strip() in ("0", "1") for name in answers.values()):
        return texts
    return texts.map(lambda text: text if text in classes else answers.get(yes_or_no(text), text), na_action="ignore")


def alike_yes_and_no(column: Series, label: str, notes: list[str]) -> Series:
    """A label whose spellings of yes and no are one each: the most frequent. Other words stay as they are."""
    texts = as_levels(column)
    counts = texts.value_counts()
    if column.dtype.kind in "biuf" or not any(name.strip().casefold() in (*YES, *NO) for name in counts.index):
        return column
    sides = {side: [name for name in counts.index if yes_or_no(name) is side] for side in (False, True)}
    if not all(sides.values()) or max(map(len, sides.values())) == 1:
        return column
    # The first of the most frequent by the alphabet, so that the order of rows changes no name.
    best = {side: min(names, key=lambda name: (-counts[name], name)) for side, names in sides.items()}
    shown = []
    for side, names in sides.items():
        spelt = ", ".join(f"'{name}' ({counts[name]} rows)" for name in sorted(names) if name != best[side])
        shown += [f"{spelt} as '{best[side]}'"] if spelt else []
    notes.append(f"spellings of yes and no in the label '{label}' were read as two classes: {' and '.join(shown)}")
    one = {name: best[side] for side, names in sides.items() for name in names}
    return texts.map(lambda name: one.get(name, name))
