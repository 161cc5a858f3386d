"""What was read, as a table: rows and labels of each domain, before training and at the top of the page."""

from __future__ import annotations

from collections.abc import Sequence

from farfield.diagnose.data_summary import DataSummary, DomainSummary, together
from farfield.report.formats import number, plural
from farfield.report.grid import Cell, Column, Grid

#: More domains than this are not shown one by one: the largest are, and the others together.
MOST_DOMAINS = 12
LARGEST = 8
#: More classes than this get no column each.
MOST_CLASSES = 6


def data_grid(data: DataSummary) -> Grid:
    """One line per domain: its rows, and the share of each class or the mean of a number. The last line is for all."""
    lines, notes = _lines(data)
    columns = [Column("domain", text=True), Column("rows"), *_label_columns(data)]
    rows = tuple((Cell(line.name), Cell(f"{line.rows:,}"), *_label_cells(line, data)) for line in lines)
    return Grid(title=_title(data), columns=tuple(columns), rows=rows, notes=(*notes, _held_out(data)))


def _title(data: DataSummary) -> str:
    what = plural(len(data.classes), "class", "classes") if data.classes else "a number to predict"
    sizes = f"{plural(data.rows, 'row')} in {plural(len(data.domains), 'domain')}, {what}"
    return f"{data.task}: {sizes}, {_features(data)}"


def _features(data: DataSummary) -> str:
    if len(data.shape) != 1:
        return f"examples of {' × '.join(map(str, data.shape))}"
    text = plural(data.shape[0], "feature")
    return text if data.columns is None else f"{text} from {plural(data.columns, 'column')}"


def _lines(data: DataSummary) -> tuple[list[DomainSummary], list[str]]:
    whole = together(data.domains, "all")
    if len(data.domains) <= MOST_DOMAINS:
        return [*data.domains, whole], []
    # Python's sort is stable: of equal sizes the first in the data comes first.
    by_size = sorted(data.domains, key=lambda domain: -domain.rows)
    others = by_size[LARGEST:]
    sizes = [domain.rows for domain in by_size]
    note = (
        f"The {LARGEST} largest of {len(by_size)} domains; they have {sizes[-1]:,} to {sizes[0]:,} rows, half of them "
        f"at most {sizes[len(sizes) // 2]:,}."
    )
    return [*by_size[:LARGEST], together(others, f"{len(others)} others"), whole], [note]


def _label_columns(data: DataSummary) -> list[Column]:
    if not data.classes:
        return [Column("mean of the label"), Column("± std")]
    if len(data.classes) > MOST_CLASSES:
        return [Column("classes"), Column("largest class", text=True), Column("its share", "%")]
    return [Column(name, "%") for name in data.classes]


def _label_cells(line: DomainSummary, data: DataSummary) -> list[Cell]:
    if not data.classes:
        like = (line.mean, line.std)
        return [Cell(number(line.mean, 4, like=like)), Cell(number(line.std, 4, like=like))]
    if len(data.classes) > MOST_CLASSES:
        present = sum(count > 0 for count in line.counts)
        largest = max(range(len(line.counts)), key=line.counts.__getitem__)
        return [Cell(str(present)), Cell(data.classes[largest]), _share(line.counts[largest], line.rows)]
    return [_share(count, line.rows) for count in line.counts]


def _share(count: int, rows: int) -> Cell:
    text = f"{100 * count / rows:.1f}"
    if count and text == "0.0":
        text = "< 0.1"
    return Cell(text, tone="" if count else "missing")


def _held_out(data: DataSummary) -> str:
    if not data.held_out:
        return "No domain is held out: all of them train."
    names: Sequence[str] = data.held_out
    if len(names) == len(data.domains):
        return "Every domain is held out in turn, while the others train."
    if len(names) == 1:
        return f"Held out: {names[0]}."
    shown = ", ".join(names[:MOST_DOMAINS]) + (f" and {len(names) - MOST_DOMAINS} more" * (len(names) > MOST_DOMAINS))
    return f"Held out, one at a time: {shown}."
