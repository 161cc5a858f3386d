"""`farfield site`: what the server's operator changes about a site during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.console import output

app = typer.Typer(
    no_args_is_help=True, help="List the sites of a server, remove one, or replace its key, during a run."
)

Out = Annotated[Path, typer.Option(help="The output folder of the server, whether it runs or is stopped.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")]


@app.command("list")
def list_(out: Out) -> None:
    """List the sites that a server lets in, with the fingerprints of their keys, and those that were removed."""
    from farfield.deployment.server.output_folder import FLOWER
    from farfield.deployment.server.site_roster import SiteRoster

    roster = SiteRoster(out / FLOWER)
    for name, fingerprint in sorted(roster.nodes.values()):
        replaced = len(roster.changes.replaced.get(name, ()))
        _say(f"{name}  {fingerprint[:16]}{f'  (key replaced {replaced} ×)' if replaced else ''}")
    for name in sorted(roster.removed):
        _say(f"{name}  removed")


@app.command("remove")
def remove(name: Name, out: Out) -> None:
    """Remove a site: its key is not let in from now on, and the run goes on with the others."""
    from farfield.deployment.server.change_site import remove_site

    _say(remove_site(out, name))


@app.command("rotate")
def rotate(
    name: Name,
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="The site's new public key.")],
    out: Out,
) -> None:
    """Replace a site's key: the key before is not let in from now on, and the site comes back with the new one."""
    from farfield.deployment.server.change_site import rotate_key

    _say(rotate_key(out, name, key))


def _say(text: str) -> None:
    output.print(text, markup=False, highlight=False, soft_wrap=True)
