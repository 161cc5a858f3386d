"""The schema that a site reports for its data before any training, and the schema that all sites agree on.

    schema = describe(frame, label="disease", drop=["id"])       # at each site; JSON by .model_dump(mode="json")
    agreed = agree({"cleveland": schema, "zurich": other})       # at the server; the same as reading the joined table
    agreed.preparation                                           # fitted on the sites' statistics

The columns, their summaries and their preparation are those of `tasks.user_data`: a table that lies in one place is
read by the same code. This is everything that a site's schema discloses:

- table: how many rows; each column's name, the kind of its cells, how many have a value and how many have none; the
  names of the levels of columns of text (of a column with so many that they look like names or ids, only their number)
  and of columns that the site file calls categorical; whether numbers are 0 and 1 only; where all rows have one value,
  that value; the label's name and classes (for a label of real numbers, or of more than 20 whole ones, only that it is
  one);
- arrays and images: how many rows, their shape and type, which columns have missing values, the names of the classes;
- a domain of a registered task: these, and what the task declares: its name, domains, columns, words and model; of
  table rows also what a table discloses of its columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from farfield.errors import UserError
from farfield.models.spec import ModelSpec
from farfield.tasks.task import Domain, Preparation, Task, TaskKind
from farfield.tasks.user_data.bag_of_words import WordPreparation
from farfield.tasks.user_data.column_decision import Names, Observed, ObservedLabel, StrictContent, too_many
from farfield.tasks.user_data.columns import observe, observe_label
from farfield.tasks.user_data.preparation import Column, TablePreparation
from farfield.tasks.user_data.source_columns import TaskTable
from farfield.tasks.user_data.table_file import TableError, need_columns

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")
Rows = Annotated[int, Field(ge=1, le=2**53)]


class TableSite(StrictContent):
    """The schema that a site reports for a table."""

    form: Literal["table"] = "table"
    rows: Rows
    columns: tuple[Observed, ...]
    label: ObservedLabel

    @model_validator(mode="after")
    def _counts_fit(self) -> TableSite:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names) or self.label.name in names:
            raise ValueError("two columns have the same name")
        if any(column.known + column.missing != self.rows for column in self.columns):
            raise ValueError("a column's counts do not add up to the rows")
        return self


class ArraySite(StrictContent):
    """The schema that a site reports for arrays, images or a domain of a registered task."""

    form: Literal["arrays", "images", "task"]
    rows: Rows
    shape: tuple[int, ...]
    dtype: Literal["float64", "float32", "uint8"]
    kind: TaskKind
    #: Of arrays, whose classes are numbers, as many as the highest number tells.
    classes: Names
    #: Of rows of numbers: whether a column has missing values.
    missing: tuple[bool, ...] = ()
    #: Of a registered task: what it declares.
    task: str = ""
    domains: Names = ()
    columns: tuple[Column, ...] = ()
    words: Names = ()
    model: ModelSpec | None = None
    defaults: dict[str, Any] = Field(default_factory=dict)
    #: Of a registered task of table rows: the summary of each column in this site's rows.
    observed: tuple[Observed, ...] = ()

    @model_validator(mode="after")
    def _parts_fit(self) -> ArraySite:
        vectors = self.form == "arrays" and len(self.shape) == 1
        if not self.shape or min(self.shape) < 1 or (self.form == "images" and len(self.shape) != 3):
            raise ValueError(f"no example has the shape {self.shape}")
        if len(self.missing) != (self.shape[0] if vectors else 0):
            raise ValueError("there is not one mark for missing values per column")
        if bool(self.classes) != (self.kind == "classification") or len(set(self.classes)) < len(self.classes):
            raise ValueError("the classes do not fit the labels")
        if (self.form == "task") != (self.model is not None):
            raise ValueError("a registered task has a model, and nothing else has")
        if self.observed and (self.form != "task" or any(c.known + c.missing != self.rows for c in self.observed)):
            raise ValueError("the summaries of columns do not fit the rows")
        return _check_width(self)


SiteSchema = TableSite | ArraySite
_SITE: TypeAdapter[SiteSchema] = TypeAdapter(Annotated[SiteSchema, Field(discriminator="form")])


class SchemaError(UserError):
    """A schema that cannot be used: another version's, damaged, or not what the site reported."""


class AgreedSchema(BaseModel):
    """The schema that all sites agree on: everything of a task but its rows. JSON both ways."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: Literal["table", "arrays", "images", "task"]
    kind: TaskKind
    #: Empty for a regression.
    classes: tuple[str, ...]
    #: The shape and type of an example before it is prepared.
    shape: tuple[int, ...]
    dtype: str
    model: ModelSpec
    defaults: dict[str, Any]
    #: How many rows each site has, in the order in which one machine would number the domains.
    sites: dict[str, int]
    columns: tuple[Column, ...] = ()
    words: tuple[str, ...] = ()
    #: A table's label, or the name of a registered task.
    label: str = ""
    task: str = ""
    #: What a user must know: columns left out, and why.
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _parts_fit(self) -> AgreedSchema:
        return _check_width(self)

    @property
    def preparation(self) -> Preparation | None:
        """The preparation, to be fitted by the training sites' statistics; None if examples are used unchanged."""
        if self.words:
            return WordPreparation(self.words)
        if not self.columns:
            return None
        return TablePreparation(
            self.columns, scale_label=self.kind == "regression", other=(self.label,) if self.label else ()
        )


Columned = TypeVar("Columned", ArraySite, AgreedSchema)


def _check_width(schema: Columned) -> Columned:
    width = schema.shape[0] if len(schema.shape) == 1 else 0
    for described in (schema.columns, schema.words):
        if described and len(described) != width:
            raise ValueError(f"an example of shape {schema.shape} has not {len(described)} columns")
    return schema


def check_agreed(own: TableSite | ArraySite, agreed: AgreedSchema) -> None:
    """Refuse, at the site, columns that it did not report, or a form of them that would disclose more than it reported.

    A column that was dropped stays dropped, whoever asks for it. Levels for numbers, or for texts that were not
    disclosed, would let a server find out from the statistics which of them occur.
    """
    if isinstance(own, TableSite) and agreed.label != own.label.name:
        raise SchemaError(f"the federation predicts '{agreed.label}', and the label here is '{own.label.name}'")
    reported = {column.name: column for column in (own.columns if isinstance(own, TableSite) else own.observed)}
    for column in agreed.columns:
        found = reported.get(column.name)
        if found is None:
            raise SchemaError(
                f"the federation asks for a column '{column.name}', which this site did not report; {_listed(reported)}"
            )
        texts = found.found in ("text", "category")
        if found.found != "nothing" and (column.kind == "category") != texts:
            raise SchemaError(
                f"the federation takes column '{column.name}' as {_plural(column.kind)}, and here it is {found.found}"
            )
        if texts and found.levels is None:
            raise SchemaError(
                f"column '{column.name}' looks like names or ids here ({found.distinct} different texts in "
                f'{found.known} rows), which are not disclosed; write categorical = ["{column.name}"] in the site file '
                "if they may be"
            )


def _listed(reported: Mapping[str, Observed]) -> str:
    return f"it reported {', '.join(list(reported)[:20])}" + (" and more" if len(reported) > 20 else "")


def _plural(kind: str) -> str:
    return {"category": "categories", "boolean": "true and false", "number": "numbers"}[kind]


def read_site_schema(content: object) -> SiteSchema:
    """Read a site's schema from JSON and check it."""
    return _read(_SITE, content, "a site's schema")


def read_agreed_schema(content: object) -> AgreedSchema:
    """Read the agreed schema from JSON and check it."""
    return _read(TypeAdapter(AgreedSchema), content, "the agreed schema")


def _read(adapter: TypeAdapter[T], content: object, what: str) -> T:
    try:
        # As JSON text, because strict reading takes a list for a tuple only there.
        return adapter.validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SchemaError(
            f"{what} cannot be read{f' at {place!r}' if place else ''}: {first['msg']}; its program may be of another "
            "version"
        ) from None


def describe(frame: DataFrame, *, label: str, drop: Sequence[str] = (), categorical: Sequence[str] = ()) -> TableSite:
    """Return the schema of one site's table. Every row must have a label."""
    need_columns(frame, [label], "the label")
    need_columns(frame, drop, "'drop'")
    need_columns(frame, categorical, "'categorical'")
    if label in drop:
        raise TableError(f"'{label}' is the label and cannot be dropped as well")
    names = [name for name in frame.columns if name not in (label, *drop)]
    observed = observe_label(frame[label], label)
    if observed.found == "text" and too_many(len(observed.levels or ()), len(frame)):
        raise TableError(
            f"the label '{label}' has {len(observed.levels or ())} classes in {len(frame)} rows; a class needs several "
            "rows, so name another label column"
        )
    columns = tuple(observe(frame[name], name, name in categorical) for name in names)
    return TableSite(rows=len(frame), columns=columns, label=observed)


def describe_examples(
    domain: Domain, kind: TaskKind, form: Literal["arrays", "images"], classes: Sequence[str]
) -> ArraySite:
    """Return the schema of one site's arrays or images."""
    vectors = domain.x.dim() == 2
    return ArraySite(
        form=form,
        rows=len(domain),
        shape=tuple(domain.x.shape[1:]),
        dtype=_dtype(domain),
        kind=kind,
        classes=tuple(classes),
        missing=tuple(torch.isnan(domain.x).any(dim=0).tolist()) if vectors else (),
    )


def describe_task(task: Task, domain: Domain) -> ArraySite:
    """Return the schema of one domain of a task that every site knows by its name."""
    preparation = task.preparation
    return ArraySite(
        form="task",
        rows=len(domain),
        shape=tuple(domain.x.shape[1:]),
        dtype=_dtype(domain),
        kind=task.kind,
        classes=task.classes,
        task=task.name,
        domains=task.domain_names,
        columns=preparation.columns if isinstance(preparation, TablePreparation) else (),
        words=preparation.words if isinstance(preparation, WordPreparation) else (),
        model=task.model,
        defaults=json.loads(json.dumps(dict(task.defaults))),
        observed=preparation.observed(domain) if isinstance(preparation, TaskTable) else (),
    )


def _dtype(domain: Domain) -> Literal["float64", "float32", "uint8"]:
    names: Mapping[torch.dtype, Literal["float64", "float32", "uint8"]] = {
        torch.float64: "float64",
        torch.float32: "float32",
        torch.uint8: "uint8",
    }
    return names[domain.x.dtype]
