"""Preparation of table rows: raw columns become the numbers that a model takes.

    preparation = TablePreparation(columns)
    told = preparation.statistics(x, y)                          # one domain's training rows, as plain JSON
    fitted = preparation.merge([told, ...])                      # what all domains' rows have in common
    fitted = preparation.fit([(domain, training_rows), ...])     # the same in one go, where all the rows are
    fitted.apply(other.x)                                        # any rows, by the same numbers

A raw row is float64: a number, 0 or 1 for false or true, or the position of a category among its column's levels; NaN
where the value is missing. What it becomes, column by column:

    number     (value − mean) / standard deviation, the median where it is missing (of several domains the
               weighted median of their medians; `statistics` says why)
    boolean    0 or 1, the more frequent one where it is missing
    category   a 0 or 1 for each level

and a further 0 or 1 for "missing" where the column has missing values. What the fitting rows never showed (a level, a
missing value, a number that varies) is a constant 0: a model has no weight for it that was ever trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from farfield.tasks.task import Domain, Preparation
from farfield.tasks.user_data import column_statistics as told
from farfield.tasks.user_data.column_statistics import Matrix, PreparationError

ColumnKind = Literal["number", "boolean", "category"]
#: The raw code of a category that is not among a column's levels.
UNSEEN = -1.0
FORMAT = 1
#: Numbers stay within so many standard deviations: one mistyped cell must not make a prediction infinite.
FURTHEST = 1000.0


@dataclass(frozen=True)
class Column:
    """What is known of a column from reading the table: its type and its width, no statistic."""

    name: str
    kind: ColumnKind
    #: The names of a category's levels, in order.
    levels: tuple[str, ...] = ()
    #: Whether the table has rows without a value here, and so a place for "missing".
    missing: bool = False

    @property
    def width(self) -> int:
        return (len(self.levels) if self.kind == "category" else 1) + self.missing


@dataclass(frozen=True)
class FittedColumn:
    """A column with its statistics. What the fitting rows did not show is not `live` and gives 0."""

    column: Column
    #: In place of a missing number or boolean.
    fill: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    #: For each output of the column, the one for "missing" last: whether it varied in the fitting rows.
    live: tuple[bool, ...] = ()

    @classmethod
    def merge(cls, column: Column, parts: Sequence[Any], rows: int) -> FittedColumn:
        """Of what each part told about this column; together they have so many rows."""
        if column.kind == "category":
            levels = told.merge_levels(parts)
            # A level is worth a weight as soon as it was seen, even if every row has it.
            return cls(column, live=(*levels.seen, *((levels.missing,) if column.missing else ())))
        merged = told.merge_booleans(parts) if column.kind == "boolean" else told.merge_numbers(parts)
        missing_live = (0 < merged.known < rows,) if column.missing else ()
        if isinstance(merged, told.Booleans):
            return cls(
                column,
                fill=float(2 * merged.true > merged.known),
                live=(0 < merged.true < merged.known, *missing_live),
            )
        return cls(
            column,
            fill=merged.median,
            mean=merged.mean,
            scale=merged.deviation,
            live=(merged.varies, *missing_live),
        )

    def apply(self, values: Matrix, out: NDArray[np.float32]) -> None:
        """Write the column's outputs for raw values into `out`, [rows, width]."""
        missing = np.isnan(values)
        if self.column.kind == "category":
            for code in range(len(self.column.levels)):
                out[:, code] = values == code
        elif self.column.kind == "boolean":
            out[:, 0] = np.where(missing, self.fill, values)
        else:
            scaled = (np.where(missing, self.fill, values) - self.mean) / self.scale
            out[:, 0] = scaled.clip(-FURTHEST, FURTHEST)
        if self.column.missing:
            out[:, -1] = missing
        out[:, ~np.array(self.live)] = 0.0


@dataclass(frozen=True)
class FittedTable:
    """A table's preparation with its numbers; JSON both ways."""

    columns: tuple[FittedColumn, ...]
    #: Regression: the label's mean and standard deviation in the fitting rows.
    label_mean: float = 0.0
    label_scale: float = 1.0
    #: The names of the label and domain columns, which a file of rows to predict may or may not have.
    other: tuple[str, ...] = field(default=(), compare=False)

    @property
    def categories(self) -> tuple[str, ...]:
        """The columns whose cells are names, not numbers, whatever they look like in a file."""
        return tuple(fitted.column.name for fitted in self.columns if fitted.column.kind == "category")

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(c.column.width for c in self.columns),)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        _check_shape(x, len(self.columns))
        raw = x.numpy()
        out = np.zeros((len(raw), *self.shape), dtype=np.float32)
        start = 0
        for number, fitted in enumerate(self.columns):
            fitted.apply(raw[:, number], out[:, start : start + fitted.column.width])
            start += fitted.column.width
        return torch.from_numpy(out)

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        return (y - self.label_mean) / self.label_scale if y.is_floating_point() else y

    def outputs(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.label_scale + self.label_mean

    def to_json(self) -> dict[str, Any]:
        columns = [{**asdict(c.column), **{k: v for k, v in asdict(c).items() if k != "column"}} for c in self.columns]
        label = {"mean": self.label_mean, "scale": self.label_scale}
        return {"kind": "table", "format": FORMAT, "columns": columns, "label": label, "other": list(self.other)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FittedTable:
        if content.get("kind") != "table" or content.get("format") != FORMAT:
            raise PreparationError(
                f"this preparation is '{content.get('kind')}' of format {content.get('format')}; "
                f"this version reads 'table' of format {FORMAT}"
            )
        try:
            columns = tuple(_column_from_json(entry) for entry in content["columns"])
            label = content["label"]
            mean, scale = float(label["mean"]), float(label["scale"])
            if not math.isfinite(mean) or not math.isfinite(scale) or scale <= 0:
                raise ValueError("in the scale of the label")
            return cls(columns, mean, scale, tuple(map(str, content["other"])))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise PreparationError(f"this preparation is damaged: {type(error).__name__} {error}") from error


@dataclass(frozen=True)
class TablePreparation(Preparation):
    """The columns of a table, still without statistics. `scale_label` is for regression."""

    columns: tuple[Column, ...]
    scale_label: bool = False
    other: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(column.width for column in self.columns),)

    def of_sources(self, sources: Sequence[Domain]) -> TablePreparation:
        """The same columns, with a place for "missing" where these domains have gaps."""
        gaps = torch.stack([torch.isnan(domain.x).any(dim=0) for domain in sources]).any(dim=0).tolist()
        pairs = zip(self.columns, gaps, strict=True)
        return replace(self, columns=tuple(replace(column, missing=gap) for column, gap in pairs))

    def check(self, domain: Domain) -> None:
        _check_shape(domain.x, len(self.columns), f"domain '{domain.name}': ")
        infinite = torch.isinf(domain.x).nonzero()
        if len(infinite):
            row, number = infinite[0].tolist()
            raise ValueError(
                f"domain '{domain.name}' has an infinite value in row {row + 1}, column '{self.columns[number].name}'; "
                "mend it or make it missing"
            )

        for number, column in enumerate(self.columns):
            codes = domain.x[:, number]
            if column.kind == "category" and bool((codes >= len(column.levels)).any()):
                raise ValueError(
                    f"domain '{domain.name}' has code {codes.nan_to_num(0).max():g} in column '{column.name}', which "
                    f"has {len(column.levels)} levels, counted from 0"
                )

    def statistics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        _check_shape(x, len(self.columns))
        if not len(x):
            raise ValueError("statistics need at least one row")
        raw = x.numpy()
        columns = [_tell(column, raw[:, number]) for number, column in enumerate(self.columns)]
        label = told.moments_of(y.numpy().astype(np.float64)).model_dump() if self.scale_label else None
        head = {"kind": "table-statistics", "format": FORMAT, "rows": len(raw)}
        return {**head, "columns": [column.model_dump() for column in columns], "label": label}

    def merge(self, parts: Sequence[Mapping[str, Any]]) -> FittedTable:
        if not parts:
            raise ValueError("a preparation needs at least one row to learn from")
        read = [self.read_statistics(part) for part in parts]
        rows = sum(part.rows for part in read)
        columns = tuple(
            FittedColumn.merge(column, [part.columns[number] for part in read], rows)
            for number, column in enumerate(self.columns)
        )
        if not self.scale_label:
            return FittedTable(columns, other=self.other)
        label = told.merge_moments(part.label for part in read if part.label is not None)
        return FittedTable(columns, label.mean, label.deviation, self.other)

    def read_statistics(self, content: Mapping[str, Any]) -> _TableStatistics:
        """A domain's statistics, checked; PreparationError for what no rows of this table could have told."""
        read = told.read_statistics(_TableStatistics, content, "a table")
        if len(read.columns) != len(self.columns):
            raise PreparationError(
                f"the statistics of a table cannot be used: it has {len(self.columns)} columns, not {len(read.columns)}"
            )
        if self.scale_label != (read.label is not None) or (read.label and read.label.known != read.rows):
            wanted = "one value of the label in each row" if self.scale_label else "classes and no numbers as labels"
            raise PreparationError(f"the statistics of a table cannot be used: it has {wanted}")
        pairs = zip(self.columns, read.columns, strict=True)
        return read.model_copy(update={"columns": [_read_column(column, entry, read.rows) for column, entry in pairs]})


class _TableStatistics(told.DomainStatistics):
    kind: Literal["table-statistics"]
    format: Literal[1]
    rows: Annotated[int, Field(ge=1, le=2**53)]
    columns: list[Any]
    label: told.Moments | None


def _tell(column: Column, values: Matrix) -> told.Numbers | told.Booleans | told.Levels:
    if column.kind == "category":
        return told.levels_of(values, len(column.levels))
    return told.booleans_of(values) if column.kind == "boolean" else told.numbers_of(values)


def _read_column(column: Column, entry: object, rows: int) -> told.Numbers | told.Booleans | told.Levels:
    what = f"column '{column.name}'"
    if column.kind == "category":
        levels = told.read_statistics(told.Levels, entry, what)
        if len(levels.seen) != len(column.levels):
            raise PreparationError(
                f"the statistics of {what} cannot be used: it has {len(column.levels)} levels, not {len(levels.seen)}"
            )
        return levels
    boolean = column.kind == "boolean"
    counted = (
        told.read_statistics(told.Booleans, entry, what) if boolean else told.read_statistics(told.Numbers, entry, what)
    )
    if counted.known > rows or (isinstance(counted, told.Booleans) and counted.true > counted.known):
        raise PreparationError(f"the statistics of {what} cannot be used: it has more values than the {rows} rows")
    return counted


def _column_from_json(entry: Mapping[str, Any]) -> FittedColumn:
    column = Column(str(entry["name"]), entry["kind"], tuple(entry["levels"]), bool(entry["missing"]))
    if column.kind not in ("number", "boolean", "category") or len(entry["live"]) != column.width:
        raise ValueError(f"in column '{column.name}'")
    if not all(isinstance(level, str) for level in column.levels) or len(set(column.levels)) < len(column.levels):
        raise ValueError(f"in the levels of column '{column.name}'")
    live = tuple(bool(flag) for flag in entry["live"])
    fill, mean, scale = (float(entry[name]) for name in ("fill", "mean", "scale"))
    if not all(map(math.isfinite, (fill, mean, scale))) or scale <= 0:
        raise ValueError(f"in the statistics of column '{column.name}'")
    return FittedColumn(column, fill, mean, scale, live)


def _check_shape(x: torch.Tensor, columns: int, where: str = "") -> None:
    if x.dtype != torch.float64 or x.dim() != 2 or x.shape[1] != columns:
        raise ValueError(f"{where}raw rows are float64 with {columns} columns, not {x.dtype} of shape {tuple(x.shape)}")
