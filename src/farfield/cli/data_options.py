"""Where a command's data comes from: a task by name, or the user's own file or folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from farfield.cli.console import messages
from farfield.diagnose.data_summary import summarise
from farfield.errors import UserError
from farfield.printable import one_line
from farfield.report.data_table import data_grid
from farfield.report.folded_notes import folded
from farfield.report.formats import printable
from farfield.runs.settings import check_weights
from farfield.tasks import Task, describe, load_table
from farfield.tasks.open_task import open_task
from farfield.tasks.task import TaskKind

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Your own data in place of a task: a .csv, .tsv, .xlsx or .parquet file with --label and --domain, or a "
        "folder of images domain/class/*.png.",
        show_default=False,
    ),
]
Label = Annotated[str | None, typer.Option("--label", help="The table's column to predict.", show_default=False)]
DomainColumn = Annotated[
    str | None,
    typer.Option("--domain", help="The table's column that says whose row it is: hospital, site.", show_default=False),
]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", help="A column of the table to leave out; give it once per column.")
]
Categorical = Annotated[
    list[str] | None, typer.Option("--categorical", help="A column of numbers that are codes of categories.")
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="The table's column of what belongs together (a patient, a burst of pictures): rows of one value train "
        "together or validate together. It is no feature.",
        show_default=False,
    ),
]
Kind = Annotated[
    TaskKind | None,
    typer.Option(
        "--kind",
        help="What the table's label is, where it is not as it looks: few different whole numbers are classes, other "
        "numbers a regression.",
        show_default=False,
    ),
]
DropMissingLabels = Annotated[
    bool, typer.Option("--drop-missing-labels", help="Leave out rows of the table without a label.")
]
LeastRows = Annotated[
    int | None, typer.Option("--least-rows", help="Leave out domains of the table with fewer rows.", show_default=False)
]
DropMissingDomains = Annotated[
    bool, typer.Option("--drop-missing-domains", help="Leave out rows of the table without a domain.")
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding", help="The encoding of a text file that is not UTF-8, such as cp1252.", show_default=False
    ),
]
Sheet = Annotated[
    str | None, typer.Option("--sheet", help="The sheet of an Excel file; the first by default.", show_default=False)
]
RowsOption = Annotated[
    int | None,
    typer.Option(
        "--rows",
        help="Take about so many rows of a large task for a quick look, drawn by domain and class.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class TableOptions:
    """What only a table needs."""

    label: str | None = None
    domain: str | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    drop_missing_labels: bool = False
    least_rows: int | None = None
    group: str | None = None
    kind: TaskKind | None = None
    drop_missing_domains: bool = False
    encoding: str | None = None
    sheet: str | None = None

    @property
    def by_name(self) -> dict[str, object]:
        """The values of the options, by what a user types."""
        return {
            "--label": self.label,
            "--domain": self.domain,
            "--drop": self.drop,
            "--categorical": self.categorical,
            "--drop-missing-labels": self.drop_missing_labels,
            "--least-rows": self.least_rows,
            "--group": self.group,
            "--kind": self.kind,
            "--drop-missing-domains": self.drop_missing_domains,
            "--encoding": self.encoding,
            "--sheet": self.sheet,
        }

    @property
    def given(self) -> list[str]:
        return [option for option, value in self.by_name.items() if value]


def typed(options: Mapping[str, object]) -> list[str]:
    """Return options as the words of a command; those that are not given are left out."""
    words: list[str] = []
    for option, value in options.items():
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple):
            words += [word for item in value for word in (option, str(item))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def find_task(
    name: str | None,
    data: Path | None,
    options: TableOptions,
    features: str | None = None,
    image_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    rows: int | None = None,
    device: str = "cpu",
) -> Task:
    """The task that was asked for. Its notes are not printed here: a mistake elsewhere is one sentence and no more.

    `settings` are those of the run: a backbone without its weights is refused before images are decoded for it. `rows`
    takes a part of the task for a quick look. `device` computes features.
    """
    if rows is not None and rows < 1:
        raise UserError(f"--rows {rows}: give a number over 0")
    if data is None:
        if options.given:
            raise UserError(f"{options.given[0]} is for a table of yours, which --data names")
        if name is None:
            raise UserError("give a task (see 'farfield list tasks'), or your own data with --data")
        if describe(name).available:  # of what is missing, the data is told first
            check_weights(settings)
        task = open_task(name, features=features, image_size=image_size, rows=rows, device=device)
    elif name is not None:
        raise UserError(f"'{name}' is a task and --data names data of your own; give one of the two")
    elif data.is_dir():
        folder = _folder(data, options)
        check_weights(settings)
        task = open_task(folder, features=features, image_size=image_size, rows=rows, device=device)
    elif features is not None or image_size is not None:
        option = "--features" if features is not None else "--image-size"
        raise UserError(f"'{data}' is a table; {option} is for images")
    else:
        task = open_task(_table(data, options), rows=rows)
    return task


def print_notes(notes: Sequence[str]) -> None:
    """Print what must be said of data, one line per note."""
    for note in folded(notes):
        messages.print(f"[yellow]note:[/] {escape(one_line(note))}", highlight=False, soft_wrap=True)


def print_reading(task: Task, held_out: Sequence[str], *, quiet: bool = False) -> None:
    """What was read, once everything was checked and before anything is trained: a table and the notes."""
    if not quiet:
        grid = data_grid(summarise(task, held_out))
        # Title and notes stand outside: a table of few columns would fold them to its own width.
        bare = replace(grid, title="", notes=())
        for part in (Text(printable(grid.title)), bare.render(messages.width), *map(Text, grid.notes), Text()):
            messages.print(part, highlight=False, soft_wrap=isinstance(part, Text))
    print_notes(task.notes)


def _folder(path: Path, options: TableOptions) -> Path:
    if options.given:
        raise UserError(
            f"'{path}' is a folder, whose names are its domains and labels; {options.given[0]} is for a table"
        )
    return path


def _table(path: Path, options: TableOptions) -> Task:
    if path.exists():
        for option, value in (("--label", options.label), ("--domain", options.domain)):
            if value is None:
                raise UserError(f"--data with a table needs {option}, the name of a column of '{path.name}'")
    return load_table(
        path,
        label=options.label or "",
        domain=options.domain or "",
        drop=options.drop,
        categorical=options.categorical,
        drop_missing_labels=options.drop_missing_labels,
        drop_missing_domains=options.drop_missing_domains,
        encoding=options.encoding,
        sheet=options.sheet,
        least_rows=options.least_rows,
        group=options.group,
        kind=options.kind,
    )
