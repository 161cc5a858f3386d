"""Preparation of table rows: raw columns become the numbers that a model takes.

    preparation = TablePreparation(columns)
    fitted = preparation.fit([(domain, training_rows), ...])     # every statistic comes from these rows
    fitted.apply(other.x)                                        # any rows, by the same numbers

A raw row is float64: a number, 0 or 1 for false or true, or the position of a category among its column's levels; NaN
where the value is missing. What it becomes, column by column:

    number     (value − mean) / standard deviation, the median where it is missing
    boolean    0 or 1, the more frequent one where it is missing
    category   a 0 or 1 for each level

and a further 0 or 1 for "missing" where the column has missing values. What the fitting rows never showed (a level, a
missing value, a number that varies) is a constant 0: a model has no weight for it that was ever trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.errors import UserError
from farfield.tasks.task import Domain

ColumnKind = Literal["number", "boolean", "category"]
Matrix = NDArray[np.float64]
#: The raw code of a category that is not among a column's levels.
UNSEEN = -1.0
FORMAT = 1
#: Numbers stay within so many standard deviations: one mistyped cell must not make a prediction infinite.
FURTHEST = 1000.0


class PreparationError(UserError):
    """Rows or a file that a preparation cannot use, in one sentence."""


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
    def fit(cls, column: Column, values: Matrix) -> FittedColumn:
        known = values[~np.isnan(values)]
        absent = len(values) - len(known)
        missing_live = (0 < absent < len(values),) if column.missing else ()
        if column.kind == "category":
            counts = np.bincount(known[known >= 0].astype(np.int64), minlength=len(column.levels))
            # A level is worth a weight as soon as it was seen, even if every row has it.
            live = tuple(bool(count) for count in counts) + ((absent > 0,) if column.missing else ())
            return cls(column, live=live)
        if not len(known):
            return cls(column, live=(False, *missing_live))
        varies = bool(known.min() < known.max())
        if column.kind == "boolean":
            return cls(column, fill=float(known.mean() > 0.5), live=(varies, *missing_live))
        scale = float(known.std()) if varies else 1.0
        return cls(
            column,
            fill=float(np.median(known)),
            mean=float(known.mean()),
            scale=scale if np.isfinite(scale) and scale > 0 else 1.0,
            live=(varies, *missing_live),
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
            return cls(columns, float(label["mean"]), float(label["scale"]), tuple(content["other"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PreparationError(f"this preparation is damaged: {type(error).__name__} {error}") from error


@dataclass(frozen=True)
class TablePreparation:
    """The columns of a table, still without statistics. `scale_label` is for regression."""

    columns: tuple[Column, ...]
    scale_label: bool = False
    other: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(column.width for column in self.columns),)

    def check(self, domain: Domain) -> None:
        _check_shape(domain.x, len(self.columns), f"domain '{domain.name}': ")
        infinite = torch.isinf(domain.x).nonzero()
        if len(infinite):
            row, number = infinite[0].tolist()
            raise ValueError(
                f"domain '{domain.name}' has an infinite value in row {row}, column '{self.columns[number].name}'; "
                "mend it or make it missing"
            )

        for number, column in enumerate(self.columns):
            codes = domain.x[:, number]
            if column.kind == "category" and bool((codes >= len(column.levels)).any()):
                raise ValueError(
                    f"domain '{domain.name}' has code {codes.nan_to_num(0).max():g} in column '{column.name}', which "
                    f"has {len(column.levels)} levels, counted from 0"
                )

    def fit(self, parts: Sequence[tuple[Domain, torch.Tensor]]) -> FittedTable:
        """Learn from these rows. Their order and how they are dealt out to clients do not matter."""
        parts = [(domain, rows.sort().values) for domain, rows in parts if len(rows)]
        if not parts:
            raise ValueError("a preparation needs at least one row to learn from")
        x = np.concatenate([domain.x.numpy()[rows.numpy()] for domain, rows in parts])
        columns = tuple(FittedColumn.fit(column, x[:, number]) for number, column in enumerate(self.columns))
        fitted = FittedTable(columns, other=self.other)
        if not self.scale_label:
            return fitted
        y = np.concatenate([domain.y.numpy()[rows.numpy()] for domain, rows in parts]).astype(np.float64)
        return replace(fitted, label_mean=float(y.mean()), label_scale=float(y.std()) or 1.0)


def _column_from_json(entry: Mapping[str, Any]) -> FittedColumn:
    column = Column(str(entry["name"]), entry["kind"], tuple(entry["levels"]), bool(entry["missing"]))
    if column.kind not in ("number", "boolean", "category") or len(entry["live"]) != column.width:
        raise ValueError(f"in column '{column.name}'")
    live = tuple(bool(flag) for flag in entry["live"])
    return FittedColumn(column, float(entry["fill"]), float(entry["mean"]), float(entry["scale"]), live)


def _check_shape(x: torch.Tensor, columns: int, where: str = "") -> None:
    if x.dtype != torch.float64 or x.dim() != 2 or x.shape[1] != columns:
        raise ValueError(f"{where}raw rows are float64 with {columns} columns, not {x.dtype} of shape {tuple(x.shape)}")
