"""Start Flower's SuperLink behind the gate, with TLS and keys, and the SuperExec that starts the ServerApp."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from farfield.deployment.flower import gate
from farfield.deployment.flower.processes import Process, environment, wait_for_port
from farfield.deployment.server.flower_command import LINK, SECRET, gated
from farfield.deployment.server.link_address import LinkAddress


@contextlib.contextmanager
def superlink(at: LinkAddress, folder: Path, certificates: Path | None) -> Iterator[Process]:
    """Run a SuperLink with the server's certificate in this folder; without one for an open server on loopback."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    _new_secret(folder)
    command = [*gated(folder), "link", "--host", at.host, "--port", str(at.port)]
    # In a file, so that the sites are still registered when the server is started again after a kill.
    command += ["--database", str(folder / "superlink.db"), "--disable-runtime-dependency-installation"]
    command += ["--isolation", "process"]  # the SuperExec is started apart, with no token on a command line
    link = [f"[superlink.{LINK}]", f'address = "{at.shown}"']
    if certificates is None:
        command += ["--insecure"]
        link += ["insecure = true"]
    else:
        files = certificates.resolve()
        command += ["--ssl-certfile", str(files / "server.crt"), "--ssl-keyfile", str(files / "server.key")]
        command += ["--ssl-ca-certfile", str(at.authority), "--enable-supernode-auth"]
        link += [f'root-certificates = "{at.authority}"']
    (home / "config.toml").write_text("\n".join(link) + "\n")
    with Process("Flower's SuperLink", command, folder / "superlink.log", environment(home, **at.variables)) as process:
        wait_for_port(at.host, at.port, process)
        yield process


def superexec(at: LinkAddress, folder: Path) -> Process:
    """Start the process that starts the ServerApp when there is a run."""
    command = [*gated(folder), "exec", "--runtime-api-address", at.shown]
    command += ["--insecure"] if at.authority is None else ["--root-certificates", str(at.authority)]
    return Process("Flower's SuperExec", command, folder / "superlink.log", environment(folder / "home"))


def _new_secret(folder: Path) -> None:
    """Write a new secret for this user's own requests to the SuperLink: every start has its own."""
    gate.ready_file(folder / SECRET).unlink(missing_ok=True)
    (folder / SECRET).unlink(missing_ok=True)
    with open(os.open(folder / SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
