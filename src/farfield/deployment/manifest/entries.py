"""The entries of a manifest: what each exchange sends, how much, and what it means.

A size in words holds for every federation with this data and method. A size in numbers is for the site's own columns,
and may grow with the columns, levels and classes of other sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from farfield.protocol.metrics import METRICS

if TYPE_CHECKING:  # for annotations alone: these import torch
    from farfield.deployment.schema.site_schema import ArraySite, SiteSchema, TableSite
    from farfield.federation.phase import Sends
    from farfield.models import Layout

SCHEMA, STATISTICS, EVALUATION, REPLY = "schema", "statistics", "evaluation", "every reply"
DIAGNOSIS, SECURE_SUMS = "diagnosis", "secure sums"
#: What `protocol.metrics` makes of a classification's rows, and of a regression's.
CLASSIFICATION, REGRESSION = METRICS["classification"], METRICS["regression"]

_ONE, _TEXT = "1 number", "text"


class Entry(BaseModel):
    """One named value that may leave the site."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: A phase of the method, or "schema", "statistics", "diagnosis", "evaluation", "every reply".
    exchange: str
    name: str
    #: In words: "parameters", "head", "1 number".
    size: str
    #: How many numbers that is for this site; None for text, or if it depends on the rows or on other sites.
    numbers: int | None = None
    meaning: str
    server_sees: Literal["each", "sum"] = "each"
    warning: str = ""
    #: Whether it is sent only in some replies.
    optional: bool = False

    @property
    def without_numbers(self) -> Entry:
        """The entry without its size in numbers, which other sites can change."""
        return self.model_copy(update={"numbers": None})


def phase_entries(phase: str, sends: Mapping[str, Sends], layout: Layout | None) -> list[Entry]:
    """Return one entry for each value that a phase of a method declares."""
    return [
        Entry(
            exchange=phase,
            name=name,
            size=_in_words(declared),
            numbers=_count(declared, layout),
            meaning=declared.meaning,
            server_sees=declared.server_sees,
            warning=declared.warning,
            optional=declared.optional,
        )
        for name, declared in sends.items()
    ]


def _in_words(sends: Sends) -> str:
    if not sends.dimensions:
        return _ONE
    if len(sends.dimensions) == 1 and isinstance(sends.dimensions[0], int):
        return f"{sends.dimensions[0]} numbers"
    return " × ".join(map(str, sends.dimensions))


def _count(sends: Sends, layout: Layout | None) -> int | None:
    if not sends.dimensions:
        return 1
    if layout is None:
        return None
    sizes = [size for size in sends.sizes(layout) if size is not None]
    return prod(sizes) if len(sizes) == len(sends.dimensions) else None


def secure_sum_entries() -> list[Entry]:
    """Return what a site sends so that the server obtains sums and no single site's numbers."""
    masked = "the numbers of a phase above as integers, plus random masks that only the sum over the sites is free of"
    helped = (
        "for each site that has stayed a share of its own mask, for each that has left a share of its key; never both"
    )
    return [
        _entry(SECURE_SUMS, "keys", "64 bytes", "two public keys, new for every sum"),
        _entry(
            SECURE_SUMS,
            "signature",
            "up to 512 bytes",
            "of these keys and of who has stayed, where the site file names peers",
        ),
        _entry(SECURE_SUMS, "sealed", "82 bytes a site", "shares of this site's masks, which only that site can read"),
        _entry(SECURE_SUMS, "masked", "8 bytes a number", masked),
        _entry(SECURE_SUMS, "shares", "33 bytes a site", helped),
    ]


def reply_entries(training: bool) -> list[Entry]:
    """Return what goes with every reply."""
    work = [
        _entry(REPLY, "samples", _ONE, "how many training rows the site has", 1),
        _entry(REPLY, "steps, examples, seconds", "3 numbers", "how much work the phase was, and how long it took", 3),
    ]
    problem = _entry(
        REPLY,
        "problem",
        _TEXT,
        "why something was refused, or that it failed",
        optional=True,
    )
    return [*(work if training else []), problem]


def schema_entries(schema: SiteSchema) -> list[Entry]:
    """Return what the site reports about itself and its data before any training."""
    who = "the site's name, its role, its share of validation rows and its version of farfield"
    first = [
        _entry(SCHEMA, "site", _TEXT, who),
        _entry(SCHEMA, "rows", _ONE, "how many rows the site has", 1),
    ]
    return [*first, *(_table_schema(schema) if schema.form == "table" else _array_schema(schema))]


def _table_schema(schema: TableSite) -> list[Entry]:
    names = [column.name for column in schema.columns]
    disclosed = [column.name for column in schema.columns if column.levels]
    found = [
        _entry(SCHEMA, "columns", "a text each", f"name and kind of each column: {', '.join(names)}"),
        _entry(
            SCHEMA,
            "counts",
            "3 numbers each",
            "of each column, how many rows have a value and how many have none; of text, how many different ones",
            3 * len(names),
        ),
    ]
    if disclosed:
        meaning = f"every different value, but not in which rows, of the columns {', '.join(disclosed)}"
        found.append(_entry(SCHEMA, "levels", "a text each", meaning))
    label = schema.label
    classes = "its classes" if label.levels is not None else "that it is a number"
    found.append(_entry(SCHEMA, "label", _TEXT, f"the label's name, '{label.name}', and {classes}"))
    return found


def _array_schema(schema: ArraySite) -> list[Entry]:
    found = [_entry(SCHEMA, "shape", f"{len(schema.shape)} numbers", "shape and type of an example", len(schema.shape))]
    if schema.form == "task":
        meaning = f"what every site knows of the task '{schema.task}': its domains, columns, classes and model"
        return [*found, _entry(SCHEMA, "task", _TEXT, meaning)]
    if schema.missing:
        meaning = "of each column, whether a row has no value there"
        found.append(_entry(SCHEMA, "missing", "a yes or no each", meaning, len(schema.missing)))
    meaning = "the names of the classes" if schema.kind == "classification" else "that the label is a number"
    return [*found, _entry(SCHEMA, "label", _TEXT, meaning)]


def statistics_entries(schema: SiteSchema) -> list[Entry]:
    """Return the statistics that the preparation is merged from; none if examples are used unchanged."""
    if schema.form != "table" and schema.words:
        seen = "which of the words that every site knows are in the training rows"
        return [_entry(STATISTICS, "words", "a yes or no each", seen, len(schema.words))]
    columns = _columns(schema)
    if columns is None:
        return []
    rows = _entry(STATISTICS, "rows", _ONE, "how many training rows the site has", 1)
    label = _entry(
        STATISTICS,
        "label",
        "3 numbers",
        "of a label of numbers: how many there are, their mean and the sum of squared deviations from it",
        3,
        optional=True,
    )
    return [rows, *_column_statistics(columns), *([label] if _may_be_regression(schema) else [])]


def _column_statistics(columns: Mapping[str, Sequence[int]]) -> list[Entry]:
    """Return one entry per kind of column: another site's values may turn a column into any kind."""
    number, boolean, category = (columns.get(kind, ()) for kind in ("number", "boolean", "category"))
    return [
        _entry(
            STATISTICS,
            "numbers",
            "5 numbers a column",
            "of each column of numbers: how many values there are, their mean, the sum of squared deviations from it, "
            "their median, and whether they vary",
            5 * len(number),
        ),
        _entry(
            STATISTICS,
            "booleans",
            "2 numbers a column",
            "of each column of true and false: how many values there are, and how many are true",
            2 * len(boolean),
        ),
        _entry(
            STATISTICS,
            "levels",
            "a yes or no each",
            "of each column of categories: which levels there are, and whether a row has none",
            sum(levels + 1 for levels in category),
        ),
    ]


def _columns(schema: SiteSchema) -> dict[str, list[int]] | None:
    """Return the number of levels of each column, by kind, from this site's own values; None without columns."""
    from farfield.tasks.user_data.column_decision import decide

    if schema.form == "table":
        decided = [decide([column])[0] for column in schema.columns]
        columns = [column for column in decided if column is not None]
    elif schema.form == "task":
        columns = list(schema.columns)
    else:
        return {"number": [0] * schema.shape[0]} if len(schema.shape) == 1 else None
    if schema.form == "task" and not columns:
        return None
    by_kind: dict[str, list[int]] = {}
    for column in columns:
        by_kind.setdefault(column.kind, []).append(len(column.levels))
    return by_kind


def _may_be_regression(schema: SiteSchema) -> bool:
    """Return whether the label may be a number: few whole numbers are classes, unless other sites have many more."""
    return schema.label.found == "number" if schema.form == "table" else schema.kind == "regression"


def diagnosis_entries() -> list[Entry]:
    """Return what a training site tells for a diagnosis of the shift between sites."""
    from farfield.diagnose.site_moments import SENDS

    return phase_entries(DIAGNOSIS, SENDS, None)


def evaluation_entries(schema: SiteSchema) -> list[Entry]:
    """Return what a site that only evaluates sends."""
    regression = _may_be_regression(schema)
    both = schema.form == "table" and regression and schema.label.levels is not None
    names = tuple(dict.fromkeys(CLASSIFICATION + REGRESSION)) if both else REGRESSION if regression else CLASSIFICATION
    meaning = f"how the model does on all rows of the site: {', '.join(names)}"
    return [_entry(EVALUATION, "metrics", f"{len(names)} numbers", meaning, len(names))]


def _entry(
    exchange: str, name: str, size: str, meaning: str, numbers: int | None = None, *, optional: bool = False
) -> Entry:
    return Entry(exchange=exchange, name=name, size=size, numbers=numbers, meaning=meaning, optional=optional)
