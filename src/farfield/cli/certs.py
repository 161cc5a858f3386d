"""`farfield certs`: a development CA, a server's certificate and sites' key pairs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from farfield.cli.console import output
from farfield.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    help="Make a development CA, the server's certificate, and a key pair for each site.",
)
#: The CA outlives the certificates it signs: a new one has to be sent to every site.
AUTHORITY_DAYS = 3650

Folder = Annotated[Path, typer.Argument(help="Where the files go; it is made if it is not there.")]


@app.command("server")
def server(
    folder: Folder,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address that sites connect to; can be repeated. Loopback by default."),
    ] = None,
    days: Annotated[int, typer.Option(help="How long the server's certificate is valid.")] = 365,
    force: Annotated[
        bool, typer.Option("--force", help="A new server key, though there is one. A CA that is there stays.")
    ] = False,
) -> None:
    """Make server.crt and server.key, and the CA that signs them if the folder has none."""
    certs = _certs()
    hosts = tuple(host or certs.LOOPBACK)
    certs.check_server_certificate(folder, hosts, days, force=force)
    if not certs.has_authority(folder):
        made = certs.make_authority(folder, max(days, AUTHORITY_DAYS))
        _say(f"{made.certificate}  a new CA, valid until {made.until:%Y-%m-%d}; its private key is {made.key}")
    of_server = certs.make_server_certificate(folder, hosts, days, force=force)
    _say(f"{of_server.certificate}  for {', '.join(of_server.hosts)}, valid until {of_server.until:%Y-%m-%d}")
    _say(f"{of_server.key}  its private key")
    _say(
        f"Send {folder / 'ca.crt'} to every site. Send ca.key and server.key to nobody: whoever has them can pass for "
        "your server."
    )


@app.command("node")
def node(
    folder: Folder,
    name: Annotated[list[str], typer.Argument(help="One key pair for each of these names.")],
    force: Annotated[bool, typer.Option("--force", help="New keys, though there are some.")] = False,
) -> None:
    """Make a site's key pair: NAME.key stays at the site, NAME.pub goes to the server's operator."""
    certs = _certs()
    names = list(dict.fromkeys(name))
    for each in names:
        certs.check_node_key(folder, each, force=force)
    for each in names:
        made = certs.make_node_key(folder, each, force=force)
        _say(f"{made.private}  private key of {each};  public key: {made.public}")
    _say(
        "Send each .pub to the server's operator. A .key belongs on its site's machine alone: whoever has it can pass "
        "for that site, so it is best made there."
    )


def _certs() -> ModuleType:
    """Late, because the rest of the command line needs no cryptography."""
    try:
        from farfield.deployment.credentials import create as certs
    except ModuleNotFoundError as error:
        raise UserError(
            f"certificates need the package '{error.name}'; install it with pip install 'farfield[flower]'"
        ) from error
    return certs


def _say(text: str) -> None:
    output.print(text, markup=False, highlight=False, soft_wrap=True)
