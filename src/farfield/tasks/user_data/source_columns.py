"""The columns of a table as a run's sources alone decide them.

    preparation = TaskTable(columns, names=names)            # the columns of all domains together
    of_run = preparation.of_sources(sources)                 # those that the sources have, as if there were no others
    of_run.examples(held_out)                                # the held-out rows, by these columns

Which columns are kept, whether they are numbers or categories, their levels and whether they have gaps: everything that
makes the width of an example comes from rows that take part. What a held-out row has beyond that has no value: a word
among numbers is missing, and a new level is none of the known ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from farfield.tasks.task import Domain
from farfield.tasks.user_data.column_decision import Observed
from farfield.tasks.user_data.columns import columns_of, encode_cells, observe
from farfield.tasks.user_data.preparation import TablePreparation
from farfield.tasks.user_data.table_file import TableError
from farfield.tasks.user_data.text_cells import CELLS, as_read

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class TaskTable(TablePreparation):
    """The columns of a table that lies in one place: those that all its domains together decide."""

    #: The columns that may be features, in the order of the table, and which of them are never numbers.
    names: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    #: What tells the cells of columns that were left out from any others: a run may use such a column.
    left_out: str = ""

    def of_sources(self, sources: Sequence[Domain]) -> TablePreparation:
        cells, commas = _read_alone(sources)
        columns = columns_of(cells, self.names, self.categorical)
        if not columns:
            names = ", ".join(f"'{domain.name}'" for domain in sources[:3])
            raise TableError(f"no column is left to learn from with the rows of {names} alone")
        return SourceTable(columns, self.scale_label, self.other, decided_by=self.columns, commas=commas)

    def observed(self, domain: Domain) -> tuple[Observed, ...]:
        """What must be known of one domain's columns to decide, together with other domains, what becomes of them."""
        cells, _ = _read_alone([domain])
        return tuple(observe(cells[name], name, name in self.categorical) for name in self.names)


@dataclass(frozen=True)
class SourceTable(TablePreparation):
    """The columns that a run's sources decide."""

    #: The columns by which a domain's `x` is made already.
    decided_by: tuple[object, ...] = ()
    #: Whether the comma is the decimal sign in the sources.
    commas: bool = False

    def examples(self, domain: Domain) -> torch.Tensor:
        if domain.cells is None or self.columns == self.decided_by:
            return domain.x
        return torch.from_numpy(encode_cells(domain.cells, self.columns, self.commas))


def _read_alone(domains: Sequence[Domain]) -> tuple[DataFrame, bool]:
    """The domains' cells with the types that a table of their rows alone would have, and whether it has commas."""
    import pandas as pd

    parts = [domain.cells for domain in domains if domain.cells is not None]
    frame = pd.concat(parts).sort_index(kind="stable")
    frame.attrs = dict(parts[0].attrs)
    how = frame.attrs.get(CELLS)
    return as_read(frame), how is not None and how.commas_in(frame)


def cells_digest(frame: DataFrame, names: Sequence[str]) -> str:
    """A short hash of the cells of some columns; empty where there are none."""
    if not names:
        return ""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode())
        digest.update("\0".join(map(str, frame[name])).encode())
    return digest.hexdigest()[:16]
