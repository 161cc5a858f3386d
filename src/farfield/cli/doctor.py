"""`farfield doctor`: check a site or a server before it starts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from farfield.cli.console import output
from farfield.cli.deployment import FederationPath, _need_flower
from farfield.cli.output_file import check_output
from farfield.errors import UserError

if TYPE_CHECKING:
    from farfield.deployment.doctor.check import Check

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def doctor(
    federation: FederationPath,
    site: Annotated[
        Path | None,
        typer.Argument(metavar="[SITE]", help="The site file or its folder, to check a site; without it, the server."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="A site's: the authority that it trusts, ca.crt.")] = None,
    key: Annotated[
        list[Path] | None, typer.Option(help="A site's private key; a server's .pub files or folders. Repeatable.")
    ] = None,
    certs: Annotated[
        Path | None, typer.Option(help="A server's: folder with server.crt, server.key and ca.crt.")
    ] = None,
    bind: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A server's: where it listens, as for 'farfield server'.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A server's: its output folder.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="A site's: its state folder. Default: beside the site file.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="As for the server or the client.")] = False,
    to: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the checks to a file, for machines.")
    ] = None,
) -> None:
    """Check a site, or a server, before it starts: connection, certificate, keys, clock, versions, disk, data.

    One line per check: ok, warning or failed, with the way out. Exit code 1 if a check failed. Nothing is changed, and
    nothing leaves this machine but a request that asks the server whether it is ready.
    """
    _need_flower()
    from farfield.deployment.doctor.server import check_server
    from farfield.deployment.doctor.site import check_site
    from farfield.deployment.federation_file import read_federation

    check_output("--json", to, [federation, site])
    asked = read_federation(federation)
    checks: Iterable[Check]
    if site is None:
        if ca is not None or state is not None:
            raise UserError("--ca and --state are a site's; name the site file to check a site, or omit them")
        checks = check_server(asked, certificates=certs, keys=key or (), bind=bind, out=out, insecure=insecure)
    else:
        from farfield.deployment.site.site_file import read_site

        if certs is not None or bind is not None or out is not None:
            raise UserError("--certs, --bind and --out are a server's; omit the site file to check a server")
        if key is not None and len(key) > 1:
            raise UserError("a site has one private key; give --key once")
        own = read_site(site)
        folder = state or own.path.parent / ".farfield" / f"{asked.name}-{own.name}"
        checks = check_site(asked, own, folder, authority=ca, key=key[0] if key else None, insecure=insecure)
    made = []
    for check in checks:
        made.append(check)
        style = _STYLES[check.status]
        line = f"[{style}]{check.status:<8}[/]{escape(check.name)}: {escape(_printable(check.text))}"
        output.print(line, highlight=False, soft_wrap=True)
    bad = sum(check.status == "failed" for check in made)
    if to is not None:
        content = {"role": "server" if site is None else "site", "checks": [check.to_json() for check in made]}
        to.write_text(json.dumps({**content, "ok": not bad}, indent=1) + "\n")
    if bad:
        raise typer.Exit(1)


def _printable(text: str) -> str:
    """Return a text without characters that a terminal would obey: some of it comes from another machine."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
