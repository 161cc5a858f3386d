"""A command whose module is imported when the command runs, so that `farfield --help` imports none of them."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

if TYPE_CHECKING:
    from click import Command, Context


class LazyCommand(TyperCommand):
    """The entry of a command in the list of commands; the command itself takes over when it is given arguments.

    Parameters
    ----------
    name
        What a user types.
    source
        The module and the object in it, for example "farfield.cli.bench:bench": a function, or a `typer.Typer` with
        commands of its own.
    help
        The text in the list of commands. It repeats the first paragraph of the command's own help.
    """

    def __init__(self, name: str, source: str, help: str) -> None:
        super().__init__(name, help=help)
        self._source = source

    def load(self) -> Command:
        """Import the command."""
        found = resolve_name(self._source)
        around = typer.Typer(rich_markup_mode="rich")
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=self.name)
        else:
            around.command(self.name)(found)
        return get_group(around).commands[str(self.name)]

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        """Return the command's own context: click goes on with the command that the context names."""
        return self.load().make_context(info_name, args, parent, **extra)
