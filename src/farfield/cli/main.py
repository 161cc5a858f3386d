"""The `farfield` command."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer
from rich.markup import escape

from farfield.cli import bench, catalogue, certs, data, deployment, report
from farfield.cli import evaluate as evaluating
from farfield.cli import train as training
from farfield.cli.console import messages
from farfield.errors import UserError

#: No space, over the quota, a file larger than allowed.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="farfield",
    help="Federated learning that holds up on clients it has never seen.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(bench.bench)
app.command()(training.train)
app.command()(training.predict)
app.command()(evaluating.evaluate)
app.command()(report.report)
app.command("list")(catalogue.list_)
app.command()(catalogue.show)
app.add_typer(data.app, name="data")
app.command()(deployment.server)
app.command()(deployment.client)
app.add_typer(certs.app, name="certs")


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from farfield import __version__

        print(f"farfield {__version__}")
        raise typer.Exit


def run() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2; an interruption is 130."""
    try:
        app()
    except UserError as error:
        messages.print(f"[bold red]error:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output went away (a pager, `head`); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        messages.print(f"[bold red]error:[/] {_plain(error.strerror)}: {_plain(error.filename)}", highlight=False)
        sys.exit(2)
    except OSError as error:  # a full disk, say: not the user's mistake, but no traceback helps either
        what = f"'{error.filename}': {error.strerror}" if error.filename is not None else str(error)
        way_out = "; make room, then bench and train go on with --resume" if error.errno in NO_ROOM else ""
        messages.print(
            f"[bold red]error:[/] {_plain(what)}{way_out}; what was recorded is kept", highlight=False, soft_wrap=True
        )
        sys.exit(1)
    except KeyboardInterrupt:
        messages.print("interrupted")
        sys.exit(130)


def _plain(text: object) -> str:
    return escape(str(text))
