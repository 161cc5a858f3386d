"""The `farfield` command. The module of a subcommand is imported when the subcommand runs."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_group

from farfield.cli.lazy_command import LazyCommand
from farfield.errors import UserError

#: No space, over the quota, a file larger than allowed.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: In the order of `farfield --help`: what a user types, where it is, the first paragraph of its help.
COMMANDS = (
    (
        "bench",
        "farfield.cli.bench:bench",
        "Compare methods on domains they never saw: leave one domain out, for every method, domain and seed.",
    ),
    (
        "diagnose",
        "farfield.cli.diagnose:diagnose",
        "Describe the shift between the domains, before training: what differs, what it means, which methods it speaks "
        "for.",
    ),
    (
        "tune",
        "farfield.cli.tune:tune",
        "Find settings of methods, with as many trials for each, on source domains alone.",
    ),
    (
        "train",
        "farfield.cli.train:train",
        "Train one method on all domains and write a model folder: weights and a card.",
    ),
    (
        "predict",
        "farfield.cli.predict:predict",
        "Predict a label with probabilities (or a value) for every example, as CSV: one line per row or per image.",
    ),
    (
        "evaluate",
        "farfield.cli.evaluate:evaluate",
        "Measure a trained model on a labelled new site: every metric, the AUROC's interval, and calibration.",
    ),
    ("report", "farfield.cli.report:report", "Write the report of a bench, finished or not, and print its table."),
    (
        "watch",
        "farfield.cli.watch:watch",
        "Show a running bench, training or deployment in the browser, without its held-out results.",
    ),
    (
        "privacy",
        "farfield.cli.privacy:privacy",
        "Tell what a private training costs in ε, or how much noise an ε needs. Nothing is trained.",
    ),
    ("list", "farfield.cli.list_and_show:list_", "List algorithms, tasks, presets or engines."),
    (
        "show",
        "farfield.cli.list_and_show:show",
        "Show a method's card (paper, phases, what leaves a client, parameters, differences), or a preset's settings.",
    ),
    (
        "server",
        "farfield.cli.deployment:server",
        "Run a federation across sites, on Flower: wait for them, train, write a model folder.",
    ),
    ("client", "farfield.cli.deployment:client", "Join a federation with this site's data, which stays here."),
    (
        "audit",
        "farfield.cli.audit:audit",
        "Verify the audit log of a server or a site, and compare what one sent with what the other received.",
    ),
    (
        "doctor",
        "farfield.cli.doctor:doctor",
        "Check a site, or a server, before it starts: connection, certificate, keys, clock, versions, disk, data.",
    ),
    (
        "site",
        "farfield.cli.site:app",
        "List the sites of a server, remove one, or replace its key, during a run.",
    ),
    ("data", "farfield.cli.data:app", "Which data sets are here; bring them in, get them, check them."),
    (
        "certs",
        "farfield.cli.certs:app",
        "Make a development CA, the server's certificate, and a key pair for each site.",
    ),
)

app = typer.Typer(
    name="farfield",
    help="Federated learning that holds up on clients it has never seen.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from farfield import __version__

        print(f"farfield {__version__}")
        raise typer.Exit


def command_line() -> TyperGroup:
    """Return the `farfield` command with all its subcommands."""
    group = get_group(app)
    for name, source, help in COMMANDS:
        group.add_command(LazyCommand(name, source, help))
    return group


def run() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2; an interruption is 130."""
    try:
        command_line()()
    except UserError as error:
        _complain(str(error))
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output went away (a pager, `head`); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        _complain(f"{error.strerror}: {error.filename}", soft_wrap=False)
        sys.exit(2)
    except OSError as error:  # a full disk, say: not the user's mistake, but no traceback helps either
        what = f"'{error.filename}': {error.strerror}" if error.filename is not None else str(error)
        way_out = "; make room, then bench and train go on with --resume" if error.errno in NO_ROOM else ""
        _complain(f"{what}{way_out}; what was recorded is kept")
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _complain(sentence: str, *, soft_wrap: bool = True) -> None:
    """Print an error. Rich is imported here, because a command without an error may not need it."""
    from rich.markup import escape

    from farfield.cli.console import messages

    shown = sentence.replace("\n", "\n       ")  # a line within an error must not look like a line of ours
    messages.print(f"[bold red]error:[/] {escape(shown)}", highlight=False, soft_wrap=soft_wrap)
