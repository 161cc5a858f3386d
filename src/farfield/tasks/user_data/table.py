"""Bring your own table: a CSV or Parquet file with a label and a domain column becomes a task.

    task = load_table("visits.csv", label="died", domain="hospital", drop=["patient"])

Decided from the whole file: the domains, and whether the label is a class or a number. Decided in each run from the
rows of its source domains: which columns there are, of which type, with which levels, and so the width of an example,
and the classes (see `source_columns`). Learned in each run from the training rows of these: every statistic (see
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
from farfield.tasks.note_prefixes import COLUMN_LEAK
from farfield.tasks.task import Domain, Task, TaskKind
from farfield.tasks.user_data.column_decision import in_order
from farfield.tasks.user_data.columns import as_text, describe_columns, encode, encode_unlabelled
from farfield.tasks.user_data.data_warnings import (
    far_notes,
    gap_notes,
    id_columns,
    id_notes,
    lacking_notes,
    leak_notes,
    one_class_notes,
    patient_notes,
    small_notes,
    spelling_notes,
)
from farfield.tasks.user_data.groups import Codes, group_notes, groups_of_column
from farfield.tasks.user_data.labels import read_labels, with_labels
from farfield.tasks.user_data.preparation import Column, FittedTable, TablePreparation
from farfield.tasks.user_data.problems import Problems
from farfield.tasks.user_data.repeated_rows import copies_noted
from farfield.tasks.user_data.roles import check_roles, with_domains
from farfield.tasks.user_data.source_columns import TaskTable, cells_digest
from farfield.tasks.user_data.table_file import (
    NOTES,
    EncodingError,
    TableError,
    read_frame,
    refuse_twice,
    rows_named,
    table_name,
)
from farfield.tasks.user_data.text_cells import as_read
from farfield.tasks.user_data.yes_and_no import alike_yes_and_no

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: One setting, chosen on validation rows of the source domains of all folds together. A domain that one fold holds out
#: is a source in the others, so no domain of the tables used was kept out of the choice (docs/bring-your-own-data.md).
HIDDEN = (32,)
DEFAULTS = {"rounds": 30, "local_epochs": 1, "batch_size": 64, "lr": 0.2, "momentum": 0.0}


def load_table(
    path: str | Path | DataFrame,
    *,
    label: str,
    domain: str,
    drop: Sequence[str] = (),
    name: str | None = None,
    categorical: Sequence[str] = (),
    group: str | None = None,
    kind: TaskKind | None = None,
    drop_missing_labels: bool = False,
    drop_missing_domains: bool = False,
    least_rows: int | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Task:
    """Read a table, a file or a data frame, as a task. Raises TableError for what cannot be used, all of it at once.

    `drop` leaves columns out, `categorical` takes columns of numbers as categories. Text, true/false and few whole
    numbers make a label a class; `kind` overrules that. `least_rows` leaves smaller domains out instead of refusing.
    `group` names a column (a patient): rows of one value train together or validate together. `encoding` is that of a
    text file, UTF-8 unless said otherwise; `sheet` is that of an Excel workbook, the first unless said otherwise.
    """
    if not isinstance(path, str | Path):
        frame, file = _numbered_rows(path), "the data frame"
        name = name or "table"
    else:
        path = Path(path)
        texts = [domain, *categorical, *([] if group is None else [group])]
        try:
            frame = read_frame(path, texts=texts, encoding=encoding, sheet=sheet)
        except EncodingError as error:
            raise TableError(f"{error}{error.way_out}") from error
        file, name = f"'{path.name}'", name or table_name(path)
    try:
        return task_from_frame(
            frame,
            name=name,
            label=label,
            domain=domain,
            drop=drop,
            categorical=categorical,
            group=group,
            kind=kind,
            drop_missing_labels=drop_missing_labels,
            drop_missing_domains=drop_missing_domains,
            least_rows=least_rows,
            source=file.strip("'"),
        )
    except TableError as error:
        raise TableError(f"{file}: {error}") from error


def _numbered_rows(given: object) -> DataFrame:
    """A data frame that a user has in memory, its rows counted as those of a file."""
    import pandas as pd

    if not isinstance(given, pd.DataFrame):
        raise TableError(f"a table is a file or a pandas DataFrame, not {type(given).__name__}")
    names = [str(name).strip() for name in given.columns]
    refuse_twice("the data frame", names)
    return given.set_axis(names, axis=1).set_axis(range(1, len(given) + 1), axis=0)


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
    drop_missing_domains: bool = False,
    least_rows: int | None = None,
    source: str = "",
    description: str = "",
) -> Task:
    """The same from a data frame whose rows are numbered as messages shall count them."""
    check_roles(frame, label, domain, drop, categorical, group)
    problems = Problems()
    read_as: list[str] = frame.attrs.get(NOTES, [])
    notes = [note for note in read_as if not any(note.startswith(f"column '{name}' ") for name in drop)]
    frame = with_labels(frame, label, drop_missing_labels, notes, problems=problems)
    frame = with_domains(frame, domain, drop_missing_domains, least_rows, notes, problems)
    if frame.empty:
        problems.refuse()
        raise TableError(f"no row is left that has a label '{label}' and a domain '{domain}'")
    frame = as_read(frame)
    features = [column for column in frame.columns if column not in (label, domain, group, *drop)]
    columns, left_out = describe_columns(frame, features, categorical, problems.add)
    notes += left_out
    if not columns and not problems:
        why = "".join(f"; {note}" for note in left_out[:3])
        raise TableError(f"no column is left to learn from beside the label '{label}' and the domain '{domain}'{why}")
    labels = alike_yes_and_no(frame[label], label, notes)
    frame = frame.assign(**{label: labels})
    read = problems.attempt(lambda: read_labels(labels, label, kind, notes))
    rows_of = _rows_by_domain(frame[domain])
    x = encode(frame, columns)
    ids = id_columns(x, columns, rows_of)
    notes += id_notes(ids, notes)
    notes += patient_notes(frame, features, categorical) if group is None else []
    if read is None:
        problems.refuse(notes)
        raise AssertionError("a label that cannot be read is a problem")
    kind, classes, y = read
    notes += _spellings(frame, label, domain, classes)
    notes += _warnings(frame, columns, label, classes, y, rows_of)
    notes += leak_notes(x, columns, label, classes, y.numpy(), notes)
    notes += gap_notes(x, columns, rows_of)
    notes += far_notes(x, columns, frame.index)
    notes += small_notes({name: len(rows) for name, rows in rows_of.items()}) if classes else []
    notes += _repeated(frame, [c.name for c in columns if c.name not in ids], label, rows_of, list(ids))
    codes = None if group is None else _groups(frame[group], group, rows_of, notes)
    problems.refuse(notes)
    domains = tuple(
        Domain(
            name,
            torch.from_numpy(x[rows]),
            y[torch.from_numpy(rows)],
            groups=None if codes is None else torch.from_numpy(codes[rows]),
            cells=frame[features].iloc[rows],
        )
        for name, rows in rows_of.items()
    )
    used = {column.name for column in columns}
    preparation = TaskTable(
        columns,
        scale_label=kind == "regression",
        other=(label, domain),
        names=tuple(features),
        categorical=tuple(categorical),
        left_out=cells_digest(frame, [name for name in features if name not in used]),
    )
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
        classes_from_rows=True,
        notes=tuple(notes),
    )


def table_model(preparation: TablePreparation, classes: int) -> ModelSpec:
    """A small MLP; two classes get two logits, as more would."""
    return ModelSpec(featurizer="mlp", input_shape=preparation.shape, outputs=classes or 1, hidden=HIDDEN)


def read_rows(path: str | Path, fitted: FittedTable) -> tuple[Tensor, tuple[str, ...]]:
    """Raw rows of a file for a trained model, and what must be said of them. A label column is not needed."""
    raw, notes = encode_unlabelled(read_frame(Path(path), texts=fitted.categories), fitted.columns)
    return torch.from_numpy(raw), notes


def _rows_by_domain(column: Series) -> dict[str, np.ndarray]:
    texts = as_text(column).to_numpy()
    return {name: np.flatnonzero(texts == name) for name in in_order(texts)}


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
        alone = {name: codes for name, codes in present.items() if len(codes) == 1}
        notes += one_class_notes({name: (classes[int(c[0])], len(rows_of[name])) for name, c in alone.items()})
        notes += lacking_notes(present, classes)
        for column in columns:
            by_value = frame.groupby(column.name, observed=True)[label].nunique()
            if 2 <= len(by_value) <= 2 * len(classes) and by_value.max() == 1:
                notes.append(
                    f"{COLUMN_LEAK}column '{column.name}' tells the label '{label}' in every row where it has a value; "
                    f"if it was recorded after the label was known, leave it out with --drop '{column.name}'"
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
