"""`farfield audit`: verify the audit log of a server or a site, and compare two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from farfield.cli.console import messages, output
from farfield.cli.output_file import check_output
from farfield.deployment.audit.compare import Comparison, compare
from farfield.deployment.audit.summary import Line, summarise
from farfield.deployment.audit.verify import Verified, find_log, verify
from farfield.printable import one_line
from farfield.records.atomic import write_json


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The output folder of a server, or a site's folder or state folder.")
    ],
    against: Annotated[
        Path | None,
        typer.Option(help="The log of the other side: compare, hash by hash, what was sent with what was received."),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="A hash that was printed before or kept elsewhere: the log must hold that entry.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON to this file.")] = None,
) -> None:
    """Verify the chain of an audit log and print what was sent and received, by peer and phase.

    Exit code 0 only if every log is intact and both agree. A chain shows what was changed, inserted or removed before
    its last entry; a cut at the end shows by --head, by --against, or by the log's own head file.
    """
    check_output("--json", json_file, [folder])
    own = verify(find_log(folder), head)
    _print_log(own)
    result: dict[str, Any] = _as_json(own)
    good = own.intact
    if against is not None:
        other = verify(find_log(against))
        _print_log(other, summary=False)
        good = good and other.intact
        if own.entries and other.entries:
            found = compare(own, other)
            _print_comparison(found)
            good = good and found.agrees
            result["comparison"] = {
                "site": found.site,
                "same_down": found.down,
                "same_up": found.up,
                "elsewhere": found.elsewhere,
                "problems": found.problems,
                "notes": found.notes,
            }
        result["against"] = _as_json(other)
    if json_file is not None:
        write_json(json_file, {**result, "good": good})
    if not good:
        raise typer.Exit(1)


def _as_json(log: Verified) -> dict[str, Any]:
    return {
        "folder": str(log.folder),
        "side": log.side,
        "name": log.name,
        "intact": log.intact,
        "entries": len(log.entries),
        "head": None if log.head is None else log.head.sha256,
        "problems": log.problems,
        "notes": log.notes,
        "summary": [line.to_json() for line in summarise(log.entries)],
    }


def _print_log(log: Verified, summary: bool = True) -> None:
    whose = f"{log.side} '{log.name}', " if log.side else ""
    _line(f"{log.folder}: {whose}{len(log.entries):,} entries that follow each other")
    if summary and log.entries:
        output.print(_table(summarise(log.entries)))
    for note in log.notes:
        messages.print(f"[yellow]note:[/] {escape(one_line(note))}", highlight=False, soft_wrap=True)
    for problem in log.problems:
        messages.print(f"[bold red]broken:[/] {escape(one_line(problem))}", highlight=False, soft_wrap=True)
    if log.intact and log.head is not None:
        _line(f"intact; head: {log.head.sha256} (entry {log.head.number})")


def _print_comparison(found: Comparison) -> None:
    _line(
        f"site '{found.site}': {found.down:,} messages to the site and {found.up:,} replies have the same hash in both"
    )
    if found.elsewhere:
        _line(f"{found.elsewhere:,} entries of the site are of runs that this server's log does not know")
    for note in found.notes:
        messages.print(f"[yellow]note:[/] {escape(one_line(note))}", highlight=False, soft_wrap=True)
    for problem in found.problems:
        messages.print(f"[bold red]differs:[/] {escape(one_line(problem))}", highlight=False, soft_wrap=True)


def _table(lines: list[Line]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("peer", "phase or question"):
        table.add_column(heading)
    for heading in ("sent", "kB", "received", "kB", "refused", "failed"):
        table.add_column(heading, justify="right")
    for of in lines:
        counts = (
            f"{of.sent:,}",
            f"{of.sent_bytes / 1000:,.1f}",
            f"{of.received:,}",
            f"{of.received_bytes / 1000:,.1f}",
            f"{of.refused:,}",
            f"{of.failed:,}",
        )
        table.add_row(Text(one_line(of.peer)), Text(one_line(of.what)), *counts)
    return table


def _line(text: str) -> None:
    output.print(one_line(text), highlight=False, soft_wrap=True, markup=False)
