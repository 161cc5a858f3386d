"""`farfield data`: which data sets are here, bringing them in, getting them, checking them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from farfield.cli.console import messages, output
from farfield.errors import UserError
from farfield.models.timm_library import is_timm
from farfield.tasks.data_folder.catalogue import CATALOGUE, data_set
from farfield.tasks.data_folder.checksums import files_of
from farfield.tasks.data_folder.data_set import DataSet
from farfield.tasks.data_folder.store import data_folder, data_folders
from farfield.tasks.data_folder.verification import check as check_one

app = typer.Typer(no_args_is_help=True, help="Which data sets are here; bring them in, get them, check them.")
#: From this width on a terminal has room for every column of the list.
WIDE = 110
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


@app.command("ls")
def ls(as_json: AsJson = False) -> None:
    """List every data set: whether it is here, where, how large, under which terms, and how to get it."""
    rows = [_row(known) for known in CATALOGUE.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    output.print(f"data folder: {', '.join(map(str, data_folders()))}", highlight=False, soft_wrap=True, markup=False)
    output.print(_listing(rows, output.width))


def _listing(rows: list[dict[str, Any]], width: int) -> Table:
    """The table for a terminal. A narrow one has terms and ways in one column, so that no name has to be cut."""
    narrow = width < WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "here", "size"):
        longest = max(len(row["name"]) for row in rows) if column == "name" else None
        table.add_column(column, no_wrap=True, min_width=longest, justify="right" if column == "size" else "left")
    for column in ("terms; how to get it",) if narrow else ("where", "terms", "how to get it"):
        table.add_column(column, overflow="fold")
    for row in rows:
        here = "yes" if row["here"] else "no"
        where = Path(row["path"]).name if row["path"] else ""
        texts = (f"{row['terms']}; {row['get']}",) if narrow else (where, row["terms"], row["get"])
        table.add_row(row["name"], here, _size(row["bytes"]), *map(escape, texts))
    return table


def _row(known: DataSet) -> dict[str, Any]:
    path = known.here()
    return {
        "name": known.name,
        "about": known.about,
        "here": path is not None,
        "path": str(path) if path is not None else None,
        "bytes": sum(file.stat().st_size for file in files_of(path)) if path is not None else None,
        "terms": known.terms,
        "get": known.get,
        "fetchable": known.fetch is not None,
        "published": dict(known.published),
    }


def _size(number: int | None) -> str:
    if number is None:
        return ""
    for unit in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number = round(number / 1000)
    return f"{number} GB"


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="A file or folder, as published.")],
    name: Annotated[
        str | None,
        typer.Option("--as", help="Which data set it is, where its layout does not say so.", show_default=False),
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Leave it where it is and put a link to it.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of the one that is here.")] = False,
) -> None:
    """Bring a data set that you have into the data folder, and record its checksums."""
    from farfield.tasks.data_folder.importing import import_path

    done = import_path(path, name, link=link, replace=replace)
    _say(f"{done.known.name}: {done.files} files in {done.path}; terms: {done.known.terms}")


@app.command("fetch")
def fetch(
    name: Annotated[
        str, typer.Argument(help="A data set; see 'farfield data ls'. 'timm:NAME' for a timm model's weights.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Accept its terms without being asked.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of the one that is here.")] = False,
) -> None:
    """Download a data set, or the weights of a model of timm, from where it is published.

    An interrupted download is gone on with.
    """
    if is_timm(name):
        return _fetch_weights(name, yes=yes, replace=replace)
    from farfield.tasks.data_folder.fetching import CannotFetch, place_of
    from farfield.tasks.data_folder.fetching import fetch as fetch_one
    from farfield.tasks.data_folder.importing import check_free

    known = data_set(name)
    if known.fetch is None:
        raise CannotFetch(f"{known.name} cannot be downloaded for you ({known.terms}); {known.get}")
    check_free(known, data_folder() / place_of(known), replace)
    _say(f"{known.name}: {known.about}\nterms: {known.terms}")
    _need_agreement(yes)
    with _Bars() as bars:
        done = fetch_one(known, replace=replace, progress=bars.show)
    _say(f"{done.known.name}: {done.files} files in {done.path}")


def _fetch_weights(name: str, *, yes: bool, replace: bool) -> None:
    from farfield.models.timm_library import configuration
    from farfield.tasks.data_folder.timm_weights import check_weights_free, fetch_weights

    check_weights_free(name, replace)
    known = configuration(name)
    terms = known.licence or "timm names none; see where the weights are published"
    _say(f"timm:{known.name}: pretrained weights from {known.source}\nterms: {terms}")
    _need_agreement(yes)
    _say(f"timm:{known.name}: {fetch_weights(name, replace=replace)}")


def _need_agreement(yes: bool) -> None:
    if not yes and not _agreed():
        raise UserError("nothing was downloaded; the terms were not accepted (--yes accepts them without a question)")


def _agreed() -> bool:
    try:
        return typer.confirm("Do you accept these terms and want to download it?", err=True)
    except typer.Abort:  # nobody is there to answer
        return False


@app.command("check")
def check(
    name: Annotated[str | None, typer.Argument(help="A data set; all that are here by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what is here with its recorded checksums and the published counts."""
    chosen = [data_set(name)] if name is not None else list(CATALOGUE.values())
    found = [check_one(known) for known in chosen]
    if name is None:
        found = [row for row in found if row.state != "absent"]
    if as_json:
        rows = [
            {
                "name": row.name,
                "path": str(row.path) if row.path is not None else None,
                "state": row.state,
                "checksums": row.checksums,
                "counts": row.counts,
                "found": row.found,
            }
            for row in found
        ]
        print(json.dumps(rows, indent=2))
    elif not found:
        _say(f"there is no data set in {', '.join(map(str, data_folders()))}; see 'farfield data ls'")
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("name", "state", "checksums", "counts"):
            table.add_column(column, no_wrap=column in ("name", "state"))
        for row in found:
            table.add_row(row.name, row.state, escape(row.checksums), escape(row.counts))
        output.print(table)
    if name is not None and found[0].state == "absent":
        raise UserError(f"{name} is not here; {data_set(name).get}")
    if any(row.state == "damaged" for row in found):
        raise typer.Exit(1)


def _say(text: str) -> None:
    output.print(text, highlight=False, soft_wrap=True, markup=False)


class _Bars:
    """A bar a file, where someone is watching."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=messages,
            transient=True,
            disable=not messages.is_terminal,
        )
        self._lines: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, name: str, done: int, total: int | None) -> None:
        if name not in self._lines:
            self._lines[name] = self._progress.add_task(escape(name), total=total)
        self._progress.update(self._lines[name], completed=done, total=total)
