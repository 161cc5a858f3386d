"""`farfield server` and `farfield client`: a deployment on Flower."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from farfield.cli.console import messages, output
from farfield.cli.ending import EndedBySignals, stop
from farfield.cli.losses import print_losses
from farfield.errors import UserError
from farfield.printable import one_line

FederationPath = Annotated[Path, typer.Argument(metavar="FEDERATION", help="The federation file, e.g. heart.toml.")]


def server(
    federation: FederationPath,
    out: Annotated[Path, typer.Option(help="Folder for the model and the records of the run.")],
    certs: Annotated[
        Path | None, typer.Option(help="Folder with server.crt, server.key and ca.crt; see 'farfield certs'.")
    ] = None,
    key: Annotated[
        list[Path] | None, typer.Option(help="A site's public key (.pub), or a folder of them. Repeatable.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the sites.")] = 600.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    start_or_resume: Annotated[
        bool,
        typer.Option(
            "--start-or-resume",
            help="Start a run in --out, or go on with the one that is there: for a service that restarts.",
        ),
    ] = False,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen, if 'server' in the federation file only leads here: 0.0.0.0:9443 behind NAT.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no keys. On addresses of this machine only.")
    ] = False,
) -> None:
    """Run a federation across sites, on Flower: wait for them, train, write a model folder.

    Sites are let in by their keys and over TLS. Each of them sees what leaves it before it joins.
    """
    _need_flower()
    from farfield.cli.deployment_console import DeploymentConsole
    from farfield.deployment.federation_file import read_federation
    from farfield.deployment.server.registration import find_public_keys
    from farfield.deployment.server.supervise import Security, has_run, serve

    asked = read_federation(federation)
    if insecure and (certs is not None or key):
        raise UserError("--insecure goes without certificates and keys; omit --certs and --key, or omit --insecure")
    if not insecure and certs is None:
        raise UserError(
            "a server needs a certificate: make one with 'farfield certs server FOLDER' and give --certs FOLDER "
            "(or --insecure, on this machine alone)"
        )
    _warn_of_open_keys([certs / "server.key", certs / "ca.key"] if certs is not None else [])
    security = Security(certs, find_public_keys(key or []))
    resume = resume or (start_or_resume and has_run(out))
    try:
        with EndedBySignals(), DeploymentConsole(messages) as console:
            result = serve(asked, out, security, wait=wait, resume=resume, bind=bind, show=console.show)
    except KeyboardInterrupt as cause:
        goes_on = "goes on" if start_or_resume else "with --resume goes on"
        stop(f"stopped; the same command {goes_on if has_run(out) else 'starts it again'}", cause)
    from farfield.trained.model_folder import load_model

    about = load_model(out).about
    kept = f"round {about['round']} of {result['rounds']}, source validation {about['source_validation']:.4f}"
    _print_head(out)
    print_losses(result)
    output.print(
        f"model: {out} ({result['algorithm']}, {result['clients']} sites, {kept})\n"
        f"sha256 of the last round's model: {result['model_sha256']}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def client(
    federation: FederationPath,
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The site file, site.toml, or the folder it is in.")],
    ca: Annotated[Path | None, typer.Option(help="The authority that signed the server's certificate: ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Approve what will leave this site, as it is printed, and join.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print what would leave this site, and do not join.")] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder for the approval and what the method keeps here. Default: beside the site file."),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a server that does not answer yet.")] = 0.0,
    again: Annotated[
        bool, typer.Option("--again", help="Allow one run more than the site file's limits.runs, and join.")
    ] = False,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Stay for the next run, and wait for a server that is away: for a service."),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no key. For a server on this machine only.")
    ] = False,
) -> None:
    """Join a federation with this site's data, which stays here.

    First everything that may leave is printed: which numbers, how many, in which exchange. It must be approved once, by
    --accept or by answering; a server that asks for anything else is refused.
    """
    _need_flower()
    from farfield.cli.deployment_console import DeploymentConsole
    from farfield.deployment.federation_file import read_federation
    from farfield.deployment.manifest.approval import changes, is_approved, save_approval
    from farfield.deployment.manifest.manifest import make_manifest, own_spec
    from farfield.deployment.manifest.privacy_budget import Spent
    from farfield.deployment.manifest.table import render
    from farfield.deployment.site.data import open_site
    from farfield.deployment.site.ledger import Ledger
    from farfield.deployment.site.site_file import read_site
    from farfield.deployment.site.supervise import Credentials, check_credentials, check_server, join

    asked, own = read_federation(federation), read_site(site)
    if insecure and (ca is not None or key is not None):
        raise UserError("--insecure goes without certificates and keys; omit --ca and --key, or omit --insecure")
    credentials = Credentials(ca, key)
    _warn_of_open_keys([key] if key is not None else [])
    if not show:  # what would leave can be read before there are any keys
        _need_authority(ca, insecure)
        check_credentials(asked, credentials)
    data = open_site(own)
    for note in data.notes:
        messages.print(f"[yellow]note:[/] {escape(one_line(note))}", highlight=False, soft_wrap=True)
    manifest = make_manifest(
        asked,
        schema=data.schema,
        spec=own_spec(asked, data.schema),
        role=own.role,
        validation=own.validation,
        limits=own.limits,
    )
    folder = state or own.path.parent / ".farfield" / f"{asked.name}-{own.name}"
    output.print(render(manifest))
    spent = Spent(folder).note(manifest) if manifest.privacy else ""
    if spent:
        messages.print(f"[yellow]note:[/] {spent}", highlight=False, soft_wrap=True)
    if show:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if is_approved(folder, manifest):
        output.print("This was approved before, and has not changed.")
    else:
        _approve(changes(folder, manifest), accept)
        save_approval(folder, manifest)
    if again:
        Ledger(folder).allow_another_run()
        output.print("One more run is allowed at this site.")
    if key is not None and key.stem != own.name:
        messages.print(
            f"[yellow]note:[/] the key is '{escape(key.name)}' and the site's name is '{escape(own.name)}'; the server "
            "lets a site in under the name of the .pub file that it was given",
            highlight=False,
            soft_wrap=True,
        )
    try:
        with EndedBySignals(), DeploymentConsole(messages) as console:
            check_server(asked, credentials, math.inf if stay else wait, show=console.show)
            join(asked, own.path, folder, credentials, show=console.show, stay=stay)
        _print_head(folder)
    except KeyboardInterrupt as cause:
        stop("this site has left; the same command joins again", cause)


def _print_head(parent: Path) -> None:
    """Print the head of the audit log: kept elsewhere, it shows later that nothing was cut off."""
    from farfield.deployment.audit.log import AuditLog

    head = AuditLog(parent).head
    if head is not None:
        messages.print(f"audit: {head.number} entries, head {head.sha256}", highlight=False, soft_wrap=True)


def _warn_of_open_keys(paths: list[Path]) -> None:
    from farfield.deployment.credentials.verify import open_key_warnings

    for sentence in open_key_warnings(paths):
        messages.print(f"[yellow]warning:[/] {escape(sentence)}", highlight=False, soft_wrap=True)


def _need_authority(ca: Path | None, insecure: bool) -> None:
    if not insecure and ca is None:
        raise UserError(
            "a site must know its server: give --ca ca.crt from its operator (or --insecure, for a server on this "
            "machine alone)"
        )


def _approve(changed: str, accept: bool) -> None:
    """Ask the operator, unless --accept was given. Ends the command if the answer is no."""
    before = f"; an earlier approval does not cover it: {changed}" if changed else ""
    if not accept and not sys.stdin.isatty():
        raise UserError(
            f"nothing has left this site: what is printed above was not approved{before}. --accept approves it"
        )
    if changed:
        output.print(f"An earlier approval does not cover this: {changed}.", highlight=False, markup=False)
    if not accept and not typer.confirm("May this leave the site?", default=False):
        messages.print("not approved: nothing has left this site")
        raise typer.Exit(1)


def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError("a deployment needs Flower, which is not installed: pip install 'farfield[flower]'")
