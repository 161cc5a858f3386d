"""The label of a table: which rows have one, whether it is a class or a number, and its value in each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from farfield.tasks.task import TaskKind
from farfield.tasks.user_data.cells import nearly_numbers
from farfield.tasks.user_data.column_decision import in_order, label_kind
from farfield.tasks.user_data.column_statistics import Matrix
from farfield.tasks.user_data.columns import as_levels, encode, levels_of, observe_label
from farfield.tasks.user_data.preparation import Column
from farfield.tasks.user_data.problems import Problems
from farfield.tasks.user_data.table_file import READ_AS_MISSING, TableError, rows_named
from farfield.tasks.user_data.yes_and_no import classes_in_order

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def with_labels(
    frame: DataFrame,
    label: str,
    drop_missing: bool,
    notes: list[str],
    option: str = "--drop-missing-labels",
    problems: Problems | None = None,
) -> DataFrame:
    """The rows that have a label; `option` is what a user says to leave the others out.

    Rows without one are refused at once, or noted in `problems` and left out.
    """
    missing = frame.index[frame[label].isna()]
    if not len(missing):
        return frame
    if len(missing) == len(frame):
        raise TableError(f"the label column '{label}' has no values")
    if drop_missing:
        notes.append(f"left out what has no label: {rows_named(missing)}")
        return frame.drop(missing)
    told = Problems() if problems is None else problems
    told.add(
        f"the label '{label}' is missing in {rows_named(missing)} (row 1 is the first below the header; missing is "
        f"{READ_AS_MISSING}); fill it in, or leave such rows out with {option}",
        option,
    )
    if problems is None:
        told.refuse()
    return frame.drop(missing)


def read_labels(
    column: Series, label: str, kind: TaskKind | None, notes: list[str]
) -> tuple[TaskKind, tuple[str, ...], Tensor]:
    """What a label column is, the names of its classes if it has any, and each row's."""
    observed = observe_label(column, label)
    chosen = kind or label_kind([observed])
    nearly = nearly_numbers(column) if observed.found == "text" else None
    if chosen == "regression":
        if observed.found == "text":
            what = nearly or f"such as '{column.iloc[0]}'"
            raise TableError(f"the label '{label}' holds text, {what}, which a regression cannot predict")
        y = encode_labels(column, label, ())
        if y.min() == y.max():
            raise TableError(f"the label '{label}' has the value {y[0]:g} in every row; there is nothing to learn")
        return "regression", (), y
    classes = classes_in_order(levels_of(column))
    if len(classes) < 2:
        raise TableError(f"the label '{label}' has the value '{classes[0]}' in every row; there is nothing to learn")
    if len(classes) > 2 and 2 * len(classes) > len(column):
        raise TableError(
            f"the label '{label}' has {len(classes)} classes in {len(column)} rows; a class needs several rows, so "
            + (f"mend the label, {nearly}" if nearly else "name another label column")
        )
    if nearly:
        notes.append(f"the label '{label}' was taken as {len(classes)} classes: it holds text, {nearly}")
    if observed.whole and len(classes) > 2:
        notes.append(
            f"the whole numbers of the label '{label}' were taken as {len(classes)} classes; if they are amounts, say "
            "--kind regression"
        )
    return "classification", classes, encode_labels(column, label, classes)


def encode_labels(column: Series, label: str, classes: Sequence[str], unseen: bool = False) -> Tensor:
    """Labels as a task holds them: the numbers of these classes, or real numbers where there are no classes.

    Another class is refused, or, where `unseen` allows it, gets a number after those.
    """
    if not classes:
        values: Matrix = encode(column.to_frame(label), [Column(label, "number")])[:, 0]
        if not np.isfinite(values).all():
            raise TableError(
                f"the label '{label}' has an infinite value in {rows_named(column.index[~np.isfinite(values)])}"
            )
        with np.errstate(over="ignore"):
            targets = values.astype(np.float32)
        if not np.isfinite(targets).all():
            rows = rows_named(column.index[~np.isfinite(targets)])
            raise TableError(f"the label '{label}' has a value in {rows} that is too large to be learned")
        return torch.from_numpy(targets)
    codes = {name: number for number, name in enumerate(classes)}
    texts = as_levels(column)
    strange = texts.index[~texts.isin(codes)]
    if unseen:
        codes |= {name: len(codes) + number for number, name in enumerate(in_order(set(texts[strange])))}
    elif len(strange):
        raise TableError(
            f"the label '{label}' has '{texts[strange[0]]}' in {rows_named(strange)}, and the classes are "
            f"{', '.join(classes)}"
        )
    return torch.tensor([codes[text] for text in texts])
