"""All checks of a server, in the order in which a failure explains the next."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from farfield.deployment.doctor.certificates import check_server_credentials
from farfield.deployment.doctor.check import Check, failed, ok, warning
from farfield.deployment.doctor.machine import check_folder, check_umask, check_versions
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.flower.processes import ProcessError, exclusive, is_loopback
from farfield.deployment.server.link_address import check_bind
from farfield.deployment.server.output_folder import FLOWER, RUN
from farfield.errors import UserError
from farfield.records import RunFolder


def check_server(
    federation: FederationFile,
    *,
    certificates: Path | None,
    keys: Sequence[Path],
    bind: str | None,
    out: Path | None,
    insecure: bool = False,
) -> Iterator[Check]:
    """Check a server before it starts, or while it runs."""
    yield from check_versions()
    if not insecure:
        yield from check_server_credentials(federation, certificates, keys)
    running = out is not None and _is_running(out)
    yield from _check_address(federation, bind, insecure, running)
    if out is not None:
        yield from check_folder("out", out, private=False)
        yield _run_in(out, running)
    yield check_umask()


def _check_address(federation: FederationFile, bind: str | None, insecure: bool, running: bool) -> Iterator[Check]:
    where = bind or federation.server
    if running:
        yield ok("port", f"the server is running, and listens at {where}")
    else:
        try:
            check_bind(federation, bind, insecure)
            yield ok("port", f"{where} is free to listen at")
        except UserError as error:
            yield failed("port", str(error))
    if is_loopback(federation.host):
        yield warning("address", f"sites connect to {federation.server}, which no other machine can reach")
        return
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(federation.host, federation.port)}
    except OSError as error:
        yield warning(
            "address",
            f"'{federation.host}' cannot be resolved here ({error.strerror or error}); sites must be able to",
        )
        return
    if bind is None and all(is_loopback(address) for address in found):
        yield failed(
            "address",
            f"'{federation.host}' is {', '.join(sorted(found))} on this machine, so no other machine could connect; "
            f"listen at all addresses with --bind 0.0.0.0:{federation.port}",
        )
        return
    yield ok("address", f"sites connect to {federation.server} ({', '.join(sorted(found))})")


def _is_running(out: Path) -> bool:
    folder = out / FLOWER
    if not folder.is_dir():
        return False
    try:
        with exclusive(folder, "running"):
            return False
    except ProcessError:
        return True


def _run_in(out: Path, running: bool) -> Check:
    run = RunFolder(out / RUN)
    if running:
        return ok("run", f"a server is running with --out '{out}'")
    if not run.exists:
        return ok("run", f"'{out}' holds no run; the server starts one")
    if run.result is not None:
        return warning("run", f"the run in '{out}' is finished; choose another --out for a new one")
    return ok("run", f"'{out}' holds a run that is not finished; --resume or --start-or-resume goes on with it")
