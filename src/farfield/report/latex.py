"""A table as LaTeX: `booktabs` rules, one `tabular`, and the notes below it."""

from __future__ import annotations

import re

from farfield.report.formats import printable
from farfield.report.grid import Cell, Column, Grid

_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{MINUS SIGN}": r"$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "²": r"\textsuperscript{2}",
    "–": "--",
    "…": r"\dots{}",
    "\N{NO-BREAK SPACE}": "~",
}
_PATTERN = re.compile("|".join(map(re.escape, _SIGNS)))


def as_latex(text: str) -> str:
    """Text in which nothing is a command of LaTeX."""
    return _PATTERN.sub(lambda match: _SIGNS[match.group()], " ".join(printable(text).split()))


def latex(grid: Grid) -> str:
    """Return the table for a document that loads `booktabs`; details stand in small type beside their value."""
    columns = "".join("l" if column.text else "r" for column in grid.columns)
    lines = [
        f"% {printable(' '.join(grid.title.split()))}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{as_latex(grid.title)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(_heading(column) for column in grid.columns) + r" \\",
        r"\midrule",
        *(" & ".join(_cell(cell) for cell in row) + r" \\" for row in grid.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if grid.notes:
        lines += [r"", r"\smallskip", r"\footnotesize", " \\\\\n".join(as_latex(note) for note in grid.notes)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _heading(column: Column) -> str:
    return _beside(column.heading, column.detail)


def _cell(cell: Cell) -> str:
    return _beside(cell.text, cell.detail)


def _beside(text: str, detail: str) -> str:
    # A line that begins with a bracket would be read as an argument of the line break before it.
    shown = as_latex(text)
    shown = f"{{{shown}}}" if shown.startswith("[") else shown
    return rf"{shown} {{\footnotesize {as_latex(detail)}}}" if detail else shown
