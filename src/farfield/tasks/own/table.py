"""Bring your own table: a CSV or Parquet file with a label and a domain column becomes a task.

    task = load_table("visits.csv", label="died", domain="hospital", drop=["patient"])

Decided from the whole file: which columns there are, of which type, with which levels, and so the width of an example;
the classes and the domains. Learned in each run from the training rows of its source domains: every statistic (see
`preparation`). What the reader did on its own account is in `task.notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from farfield.models.spec import ModelSpec
from farfield.tasks.own.cells import nearly_numbers
from farfield.tasks.own.columns import as_text, describe_columns, encode, encode_unlabelled, observe_label
from farfield.tasks.own.columns import levels_of as text_levels
from farfield.tasks.own.copies import copies_noted
from farfield.tasks.own.decision import label_kind
from farfield.tasks.own.doubts import (
    gap_notes,
    id_columns,
    id_notes,
    lacking_notes,
    leak_notes,
    small_notes,
    spelling_notes,
)
from farfield.tasks.own.groups import Codes, group_notes, groups_of_column
from farfield.tasks.own.preparation import Column, FittedTable, TablePreparation
from farfield.tasks.own.statistics import Matrix
from farfield.tasks.own.table_file import (
    COMMA_NOTE,
    READ_AS_MISSING,
    TableError,
    need_columns,
    read_frame,
    rows_named,
    table_name,
)
from farfield.tasks.task import Domain, Task, TaskKind

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: A domain with fewer rows can hardly be trained on and validated, and says little when it is held out.
LEAST_ROWS = 5
#: One setting, chosen on validation rows of the source domains of all folds together. A domain that one fold holds out
#: is a source in the others, so no domain of the tables used was kept out of the choice (docs/bring-your-own-data.md).
HIDDEN = (32,)
DEFAULTS = {"rounds": 30, "local_epochs": 1, "batch_size": 64, "lr": 0.2, "momentum": 0.0}


def load_table(
    path: str | Path,
    *,
    label: str,
    domain: str,
    drop: Sequence[str] = (),
    name: str | None = None,
    categorical: Sequence[str] = (),
    group: str | None = None,
    kind: TaskKind | None = None,
    drop_missing_labels: bool = False,
    least_rows: int | None = None,
) -> Task:
    """Read a table as a task. Raises TableError, one sentence, for what cannot be used.

    `drop` leaves columns out, `categorical` takes columns of numbers as categories. Text, true/false and few whole
    numbers make a label a class; `kind` overrules that. `least_rows` leaves smaller domains out instead of refusing.
    `group` names a column (a patient): rows of one value train together or validate together.
    """
    path = Path(path)
    frame = read_frame(path, texts=[domain, *([] if group is None else [group])])
    try:
        return task_from_frame(
            frame,
            name=name or table_name(path),
            label=label,
            domain=domain,
            drop=drop,
            categorical=categorical,
            group=group,
            kind=kind,
            drop_missing_labels=drop_missing_labels,
            least_rows=least_rows,
            source=path.name,
        )
    except TableError as error:
        raise TableError(f"'{path.name}': {error}") from error


def task_from_frame(
    frame: DataFrame,
    *,
    name: str,
    label: str,
    domain: str,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    group: str | None = None,
    kind: TaskKind | None = None,
    drop_missing_labels: bool = False,
    least_rows: int | None = None,
    source: str = "",
    description: str = "",
) -> Task:
    """The same from a data frame whose rows are numbered as messages shall count them."""
    _check_roles(frame, label, domain, drop, categorical, group)
    notes = [frame.attrs[COMMA_NOTE]] if COMMA_NOTE in frame.attrs else []
    frame = with_labels(frame, label, drop_missing_labels, notes)
    frame = _with_domains(frame, domain, least_rows, notes)
    features = [column for column in frame.columns if column not in (label, domain, group, *drop)]
    columns, left_out = describe_columns(frame, features, categorical)
    notes += left_out
    if not columns:
        raise TableError(f"no column is left to learn from beside the label '{label}' and the domain '{domain}'")
    kind, classes, y = _labels(frame[label], label, kind, notes)
    rows_of = _rows_by_domain(frame[domain])
    x = encode(frame, columns)
    ids = id_columns(x, columns, rows_of)
    notes += id_notes(ids, notes)
    notes += _spellings(frame, label, domain, classes)
    notes += _warnings(frame, columns, label, classes, y, rows_of)
    notes += leak_notes(x, columns, label, classes, y.numpy(), notes)
    notes += gap_notes(x, columns, rows_of)
    notes += small_notes({name: len(rows) for name, rows in rows_of.items()}) if classes else []
    notes += _repeated(frame, [c.name for c in columns if c.name not in ids], label, rows_of, list(ids))
    codes = None if group is None else _groups(frame[group], group, rows_of, notes)
    domains = tuple(
        Domain(
            name,
            torch.from_numpy(x[rows]),
            y[torch.from_numpy(rows)],
            groups=None if codes is None else torch.from_numpy(codes[rows]),
        )
        for name, rows in rows_of.items()
    )
    preparation = TablePreparation(columns, scale_label=kind == "regression", other=(label, domain))
    return Task(
        name=name,
        kind=kind,
        domains=domains,
        classes=classes,
        model=table_model(preparation, len(classes)),
        defaults=DEFAULTS,
        description=description or f"{label} by {domain}, from {source}",
        source=source,
        preparation=preparation,
        notes=tuple(notes),
    )


def table_model(preparation: TablePreparation, classes: int) -> ModelSpec:
    """A small MLP; two classes get two logits, as more would."""
    return ModelSpec(featurizer="mlp", input_shape=preparation.shape, outputs=classes or 1, hidden=HIDDEN)


def read_rows(path: str | Path, fitted: FittedTable) -> tuple[Tensor, tuple[str, ...]]:
    """Raw rows of a file for a trained model, and what must be said of them. A label column is not needed."""
    raw, notes = encode_unlabelled(read_frame(Path(path)), fitted.columns)
    return torch.from_numpy(raw), notes


def _check_roles(
    frame: DataFrame, label: str, domain: str, drop: Sequence[str], categorical: Sequence[str], group: str | None
) -> None:
    need_columns(frame, [label], "the label")
    need_columns(frame, [domain], "the domain")
    need_columns(frame, drop, "--drop")
    need_columns(frame, categorical, "--categorical")
    if label == domain:
        raise TableError(f"'{label}' cannot be both the label and the domain")
    if group is not None:
        need_columns(frame, [group], "the group")
        if group in (label, domain, *categorical):
            raise TableError(f"'{group}' cannot be the group and something else as well")
    for role, column in (("label", label), ("domain", domain)):
        if column in drop:
            raise TableError(f"'{column}' is the {role} and cannot be dropped as well")


def with_labels(
    frame: DataFrame, label: str, drop_missing: bool, notes: list[str], option: str = "--drop-missing-labels"
) -> DataFrame:
    """The rows that have a label; `option` is what a user says to leave the others out."""
    missing = frame.index[frame[label].isna()]
    if not len(missing):
        return frame
    if len(missing) == len(frame):
        raise TableError(f"the label column '{label}' has no values")
    if not drop_missing:
        raise TableError(
            f"the label '{label}' is missing in {rows_named(missing)} (row 1 is the first below the header; missing is "
            f"{READ_AS_MISSING}); fill it in, or leave such rows out with {option}"
        )
    notes.append(f"left out what has no label: {rows_named(missing)}")
    return frame.drop(missing)


def _with_domains(frame: DataFrame, domain: str, least: int | None, notes: list[str]) -> DataFrame:
    missing = frame.index[frame[domain].isna()]
    if len(missing):
        raise TableError(
            f"the domain '{domain}' is missing in {rows_named(missing)} (row 1 is the first below the header; missing "
            f"is {READ_AS_MISSING}); fill it in with a name, or remove these rows"
        )
    names = as_text(frame[domain])
    sizes = names.value_counts()
    small = sizes[sizes < (LEAST_ROWS if least is None else least)].sort_index()
    if not len(small):
        return frame
    shown = ", ".join(f"'{name}' ({size})" for name, size in small.head(5).items())
    shown += f" and {len(small) - 5} more" if len(small) > 5 else ""
    if least is None:
        raise TableError(
            f"of {len(sizes)} domains of '{domain}', {len(small)} with fewer than {LEAST_ROWS} rows: {shown}; merge "
            f"them in the file, name a coarser --domain, or leave them out with --least-rows {LEAST_ROWS}"
        )
    if len(small) == len(sizes):
        raise TableError(f"no domain of '{domain}' has {least} rows; the largest has {sizes.max()}")
    notes.append(f"left out {len(small)} of {len(sizes)} domains, with fewer than {least} rows: {shown}")
    return frame[~names.isin(small.index)]


def _rows_by_domain(column: Series) -> dict[str, np.ndarray]:
    texts = as_text(column).to_numpy()
    return {name: np.flatnonzero(texts == name) for name in text_levels(column)}


def _groups(column: Series, group: str, rows_of: dict[str, np.ndarray], notes: list[str]) -> Codes:
    """A number a row, the same for the rows of a group."""
    codes, texts = groups_of_column(column, group, notes)
    owner = _owners(rows_of, len(codes))
    notes += group_notes(f"'{group}'", codes, owner, list(rows_of), lambda code: texts.iloc[(codes == code).argmax()])
    return codes


def _owners(rows_of: dict[str, np.ndarray], rows: int) -> Codes:
    """The number of each row's domain."""
    owner = np.empty(rows, dtype=np.int64)
    for number, part in enumerate(rows_of.values()):
        owner[part] = number
    return owner


def _labels(
    column: Series, label: str, kind: TaskKind | None, notes: list[str]
) -> tuple[TaskKind, tuple[str, ...], Tensor]:
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
    classes = text_levels(column)
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


def encode_labels(column: Series, label: str, classes: Sequence[str]) -> Tensor:
    """Labels as a task holds them: the numbers of these classes, or real numbers where there are no classes."""
    if not classes:
        values: Matrix = encode(column.to_frame(label), [Column(label, "number")])[:, 0]
        if not np.isfinite(values).all():
            raise TableError(
                f"the label '{label}' has an infinite value in {rows_named(column.index[~np.isfinite(values)])}"
            )
        return torch.from_numpy(values.astype(np.float32))
    codes = {name: number for number, name in enumerate(classes)}
    texts = as_text(column)
    strange = texts.index[~texts.isin(codes)]
    if len(strange):
        raise TableError(
            f"the label '{label}' has '{texts[strange[0]]}' in {rows_named(strange)}, and the classes are "
            f"{', '.join(classes)}"
        )
    return torch.tensor([codes[text] for text in texts])


def _warnings(
    frame: DataFrame,
    columns: Sequence[Column],
    label: str,
    classes: Sequence[str],
    y: Tensor,
    rows_of: dict[str, np.ndarray],
) -> list[str]:
    notes = []
    if classes:
        present = {name: np.unique(y.numpy()[rows]) for name, rows in rows_of.items()}
        for name, rows in rows_of.items():
            if len(present[name]) == 1:
                only = classes[int(present[name][0])]
                notes.append(
                    f"domain '{name}' has one class only ('{only}' in all its {len(rows)} rows): held out, its "
                    "accuracy says little and AUROC is not defined"
                )
        notes += lacking_notes(present, classes)
        for column in columns:
            by_value = frame.groupby(column.name, observed=True)[label].nunique()
            if 2 <= len(by_value) <= 2 * len(classes) and by_value.max() == 1:
                notes.append(
                    f"column '{column.name}' tells the label '{label}' in every row where it has a value; if it was "
                    f"recorded after the label was known, leave it out with --drop '{column.name}'"
                )
    return notes


def _spellings(frame: DataFrame, label: str, domain: str, classes: Sequence[str]) -> list[str]:
    named = [(f"the label '{label}'", label)] * bool(classes) + [(f"the domain '{domain}'", domain)]
    notes = []
    for what, column in named:
        counts = as_text(frame[column]).value_counts()
        notes += spelling_notes(what, {name: int(counts[name]) for name in sorted(counts.index)})
    return notes


def _repeated(
    frame: DataFrame, features: list[str], label: str, rows_of: dict[str, np.ndarray], ids: Sequence[str]
) -> list[str]:
    """Rows that occur more than once, in two domains or in one, whatever number each of them got."""
    import pandas as pd

    if not features:  # rows that have nothing but a number
        return []

    key = pd.util.hash_pandas_object(frame[[*features, label]].astype(str), index=False).to_numpy()
    owner = _owners(rows_of, len(frame))
    aside = f" and {', '.join(repr(name) for name in ids)} aside" if ids else ""
    return copies_noted(key, owner, list(rows_of), lambda rows: rows_named(frame.index[rows]), aside)
