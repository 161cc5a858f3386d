"""A table of text, and the ways it is shown: in a terminal, in Markdown, on the page.

A cell has a text and a smaller detail. In a terminal and on the page the detail stands below, in Markdown beside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from farfield.printable import one_line

Tone = Literal["", "better", "worse", "missing"]

_STYLES = {"": "", "better": "green", "worse": "red", "missing": "dim"}
_NAME_WIDTH = 12
_TEXT_WIDTH = 8
#: A word of a heading is broken only beyond this.
_HEADING_WIDTH = 13
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Cell:
    """`value` is what the text stands for: the page sorts by it. None where the text says it all."""

    text: str
    detail: str = ""
    tone: Tone = ""
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """`text` columns hold words, which may be broken; the others hold numbers, which may not.

    `optional` columns are left out of a terminal that is too narrow for all. `term` is the word of the glossary that
    explains the heading.
    """

    heading: str
    detail: str = ""
    text: bool = False
    optional: bool = False
    term: str = ""


@dataclass(frozen=True)
class Grid:
    """Columns and rows as they will be read. The first column names the row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def render(self, width: int = 100) -> RichTable:
        """The table for a terminal, at most `width` columns wide as long as the names allow it."""
        shown = list(range(len(self.columns)))
        notes = list(self.notes)
        least = [self._least(i) for i in shown]
        if sum(least) + len(least) - 1 > width and any(c.optional for c in self.columns):
            left_out = [c.heading for c in self.columns if c.optional]
            shown = [i for i in shown if not self.columns[i].optional]
            notes.append(f"{len(left_out)} columns do not fit here; to_dicts() and the report have them.")
        widths, gap = self._fit(shown, width)
        table = RichTable(
            title=Text(one_line(self.title)) if self.title else None,
            caption=Text("\n".join(one_line(note) for note in notes)) if notes else None,
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, gap - 1, 0, 0),  # the box's divider is a blank already
        )
        for i, column_width in zip(shown, widths, strict=True):
            column = self.columns[i]
            heading = Text(one_line(column.heading))
            if column.detail:
                heading.append(f"\n{one_line(column.detail)}", "dim")
            table.add_column(
                heading,
                justify="left" if column.text else "right",
                vertical="top",
                width=column_width,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(_rich(row[i]) for i in shown))
        return table

    def markdown(self) -> str:
        """The table as Markdown, with its notes below."""
        head = [_beside(c.heading, c.detail) for c in self.columns]
        rule = ["---" if c.text else "---:" for c in self.columns]
        body = [[_beside(cell.text, cell.detail) for cell in row] for row in self.rows]
        lines = [f"**{as_markdown(self.title)}**", ""]
        lines += [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]
        if self.notes:
            lines += ["", *(f"{as_markdown(note)}  " for note in self.notes)]
        return "\n".join(lines) + "\n"

    def _fit(self, shown: Sequence[int], width: int) -> tuple[list[int], int]:
        """Column widths, and the gap between columns: whatever can be broken is narrowed until all of it fits."""
        least = [self._least(i) for i in shown]
        widths = [max(self._natural(i), low) for i, low in zip(shown, least, strict=True)]
        gap = 2 if sum(widths) + 2 * (len(shown) - 1) <= width else 1
        excess = sum(widths) + gap * (len(shown) - 1) - width
        for _ in range(max(excess, 0)):
            slack = [w - low for w, low in zip(widths, least, strict=True)]
            widest = max(range(len(slack)), key=slack.__getitem__)
            if not slack[widest]:
                break
            widths[widest] -= 1
        return widths, gap

    def _lines(self, column: int) -> list[str]:
        cells = [row[column] for row in self.rows]
        return [one_line(text) for cell in cells for text in (cell.text, cell.detail)]

    def _natural(self, column: int) -> int:
        of = self.columns[column]
        return max(len(text) for text in (one_line(of.heading), one_line(of.detail), *self._lines(column)))

    def _least(self, column: int) -> int:
        if not self.columns[column].text:
            broken = [len(t) if not _LETTER.search(t) else min(len(t), _TEXT_WIDTH) for t in self._lines(column)]
            # A heading of our own is not broken within a word; the name of a domain may be.
            heading = [] if self.columns[column].optional else self.columns[column].heading.split()
            return max([*broken, 4, *(min(len(word), _HEADING_WIDTH) for word in heading)])
        if column == 0:
            return min(self._natural(column), _NAME_WIDTH)
        words = [len(word) for line in self._lines(column) for word in line.split()]
        return min(max([*words, 4]), _NAME_WIDTH)


@dataclass(frozen=True)
class Table:
    """Numbers in `records`, one flat dict per line, and the same as text in `grid`."""

    records: tuple[dict[str, Any], ...]
    grid: Grid

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one flat dict per line, ready for `pandas.DataFrame`."""
        return [dict(record) for record in self.records]

    def render(self, width: int = 100) -> RichTable:
        return self.grid.render(width)

    def markdown(self) -> str:
        return self.grid.markdown()


def _rich(cell: Cell) -> Text:
    text = Text(one_line(cell.text), _STYLES[cell.tone])
    if cell.detail:
        text.append(f"\n{one_line(cell.detail)}", "dim")
    return text


def _beside(text: str, detail: str) -> str:
    return as_markdown(f"{text} {detail}" if detail else text)


def as_markdown(text: str) -> str:
    """Names are other people's text: nothing in them may become markup, a link or a new cell."""
    escaped = re.sub(r"&(?=[#\w])", "&amp;", one_line(text.replace("\n", " ")))
    escaped = re.sub(r"<(?=[\w/!?])", "&lt;", escaped)
    return re.sub(r"([\\|*`])", r"\\\1", escaped).replace("](", "]\\(")
