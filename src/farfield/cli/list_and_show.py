"""`farfield list` and `farfield show`: what there is, and what it does."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from farfield.algorithms import AlgorithmError, FedAvg, method, names, params_of, parts, use
from farfield.algorithms.parameters import search_range
from farfield.cli.console import output
from farfield.errors import UserError
from farfield.federation.phase import Sends, phases_of
from farfield.models import Layout, build_model
from farfield.records.setting_text import NONE
from farfield.runs import presets
from farfield.runs.engines import ENGINES
from farfield.tasks import describe, load
from farfield.tasks import names as task_names


def list_(
    what: Annotated[str, typer.Argument(help="algorithms, tasks, presets or engines")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    use_file: Annotated[list[Path] | None, typer.Option("--use", help="A Python file that registers methods.")] = None,
) -> None:
    """List algorithms, tasks, presets or engines."""
    for path in use_file or []:
        use(path)
    makers = {"algorithms": _algorithms, "tasks": _tasks, "presets": _presets, "engines": _engines}
    if what not in makers:
        raise UserError(f"there is no list of '{what}'; choose one of {', '.join(makers)}")
    rows = makers[what]()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if what == "algorithms":
        rows = [_with_limits(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows[0]:
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    output.print(table)


def _with_limits(row: dict[str, Any]) -> dict[str, Any]:
    """Put what a method does not support in a few words in the place of the whole declaration."""
    short = method(row["name"]).supports.short
    return {{"supports": "limits"}.get(key, key): short if key == "supports" else cell for key, cell in row.items()}


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _algorithms() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "family": method(name).family,
            "phases": list(method(name).phases),
            "composable": composable(method(name)),
            "supports": method(name).supports.to_json(),
            "paper": method(name).paper,
        }
        for name in names()
    ]


def _tasks() -> list[dict[str, Any]]:
    return [
        {
            "name": entry.name,
            "domains": list(entry.domains),
            "classes": entry.classes,
            "available": entry.available,
            "summary": entry.summary,
        }
        for entry in map(describe, task_names())
    ]


def _presets() -> list[dict[str, Any]]:
    loaded = [presets.load(name) for name in presets.names()]
    return [
        {
            "name": p.name,
            "task": p.task,
            "available": p.task in task_names() and describe(p.task).available,
            "model": p.network,
            "about": p.about,
        }
        for p in loaded
    ]


def _engines() -> list[dict[str, Any]]:
    return [{"name": e.name, "available": e.available, "summary": e.summary} for e in ENGINES.values()]


def composable(algorithm: type[FedAvg]) -> str:
    """On which side of a '+' a method can stand."""
    sides = [] if algorithm.not_composable else ["client"]
    return ", ".join([*sides, *(["server"] if algorithm.server_half else [])]) or "no"


def show(
    algorithm: Annotated[str, typer.Argument(help="A method, a composition 'a+b', or a preset 'paper/task'.")],
    task: Annotated[str, typer.Option(help="The task whose model the sizes are for.")] = "rotated-digits",
    use_file: Annotated[list[Path] | None, typer.Option("--use", help="A Python file that registers methods.")] = None,
) -> None:
    """Show a method's card (paper, phases, what leaves a client, parameters, differences), or a preset's settings."""
    for path in use_file or []:
        use(path)
    if "/" in algorithm:
        # The whole file: its comments say where each value comes from.
        output.print(presets.text_of(algorithm), highlight=False, markup=False, soft_wrap=True, end="")
        return
    client, servers = parts(algorithm)
    layout = build_model(client.model_for(load(task).model), 0).layout
    output.print(f"[bold]{algorithm}[/]  {inspect.getdoc(client)}", highlight=False)
    for part in (client, *servers):
        output.print(f"  {part.name}: {part.paper or 'no paper'}", highlight=False)
    output.print(f"  family: {client.family};  can stand in a composition as: {composable(client)}", highlight=False)
    if not client.not_composable and not servers:
        able = [n for n in names() if method(n).server_half and _goes_together(client.name, n)]
        output.print(f"  server halves it works with: {', '.join(able) or 'none'}", highlight=False)
    if client.pooled:
        output.print("[bold yellow]  the raw data leaves every client: a reference, not a federated method[/]")
    _print_limits((client, *servers))
    _print_phases(client, layout, task)
    _print_parameters(algorithm)
    for part in (client, *servers):
        if part.differences:
            whose = f"{part.name} differs" if servers else "Differs"
            output.print(f"\n[bold]{whose} from the paper in[/]")
            for number, difference in enumerate(part.differences, 1):
                output.print(f"  {number}. {difference}", highlight=False)


def _goes_together(client: str, server: str) -> bool:
    try:
        params_of(f"{client}+{server}")
    except AlgorithmError:
        return False
    return True


def _print_limits(methods: tuple[type[FedAvg], ...]) -> None:
    """Print what the methods of a name do not support, with the reasons; of a server half only clients count."""
    client, *servers = methods
    lines = [(client, *limit) for limit in client.supports.limits()]
    lines += [(server, *limit) for server in servers for limit in server.supports.limits() if "clients" in limit[0]]
    if not lines:
        output.print("  supports every kind of task, model and setting", highlight=False)
        return
    output.print("\n[bold]Supports all but[/]")
    for part, words, reason, way_out in lines:
        output.print(f"  {words}: {part.name} {reason}; {way_out}", highlight=False, markup=False)


def _print_phases(client: type[FedAvg], layout: Layout, task: str) -> None:
    output.print(f"\n[bold]What leaves a client[/] (sizes for the model of {task}, {layout.parameters} parameters)")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("phase", "name", "size", "server sees", "meaning"):
        table.add_column(column)
    phases = phases_of(client)
    for phase in (*client.phases, "evaluate"):
        for name, sends in phases[phase].items():
            table.add_row(phase, name, _size(sends, layout), sends.server_sees, sends.meaning)
            if sends.warning:
                table.add_row("", "", "", "", f"[bold yellow]{sends.warning}[/]")
    output.print(table)
    output.print("  with every reply: the client's number, domain, and number of training rows", highlight=False)


def _size(sends: Sends, layout: Layout) -> str:
    if not sends.dimensions:
        return "1"
    sizes = [str(n) if n is not None else str(d) for d, n in zip(sends.dimensions, sends.sizes(layout), strict=True)]
    return " × ".join(sizes)


#: The columns of the parameter table: what each prints of a parameter's name and field.
_PARAMETER_COLUMNS: dict[str, Callable[[str, FieldInfo], str]] = {
    "name": lambda name, field: name,
    "default": lambda name, field: NONE if field.default is None else str(field.default),
    "search": lambda name, field: str(search_range(field) or "–"),
    "meaning": lambda name, field: field.description or "",
}


def _print_parameters(algorithm: str) -> None:
    output.print("\n[bold]Parameters[/] (--set name=value)")
    output.print(_parameter_table(algorithm))


def _parameter_table(algorithm: str) -> Table:
    table = Table(*_PARAMETER_COLUMNS, box=None, pad_edge=False, header_style="bold")
    for name, field in params_of(algorithm).model_fields.items():
        table.add_row(*(cell(name, field) for cell in _PARAMETER_COLUMNS.values()))
    return table
