"""Where the SuperLink listens, and how the server's own processes reach it.

Without `--bind` both are the address in the federation file, where sites connect. With `--bind` sites connect to a
public address that leads here (NAT, a forwarded port, 0.0.0.0), and the server's own processes connect by loopback.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from farfield.deployment.credentials.verify import covers
from farfield.deployment.federation_file import FederationFile, split_address
from farfield.deployment.flower.listening import LOCAL_NAME, VARIABLE, open_sockets
from farfield.deployment.flower.processes import ProcessError, is_loopback, need_free_address
from farfield.errors import UserError

#: A folder among Flower's files: the certificate for `localhost`, made anew by each start.
OWN_CERTIFICATE = "localhost"
#: Days for which that certificate is valid: longer than any run.
OWN_DAYS = 3650


class BindError(UserError):
    """An address that cannot be listened at, in one sentence."""


@dataclass(frozen=True)
class LinkAddress:
    """The address of the SuperLink for the server's own processes, and what lets it listen there and elsewhere."""

    host: str
    port: int
    #: The authority that the server's own processes trust; None without TLS.
    authority: Path | None
    #: Environment variables of the SuperLink.
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """Host and port as one text, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_bind(federation: FederationFile, bind: str | None, insecure: bool) -> None:
    """Refuse an address to listen at that cannot be used. `bind` is what `--bind` gives: host:port."""
    if bind is None:
        need_free_address(federation.host, federation.port)
        return
    host, port = _split(bind)
    if insecure and not is_loopback(host):
        raise BindError(
            f"--insecure is for addresses of this machine alone, and --bind {bind} is not one; give 127.0.0.1, or "
            "--certs and --key"
        )
    try:
        for listener in open_sockets(host, port):
            listener.close()
    except OSError as error:
        raise ProcessError(
            f"cannot listen at {bind} ({error.strerror}); end what uses this port, or give --bind an address of this "
            "machine, such as 0.0.0.0:9443"
        ) from None


def link_address(
    federation: FederationFile, folder: Path, certificates: Path | None, bind: str | None = None
) -> LinkAddress:
    """Return the SuperLink's address. With `bind` and TLS, make a certificate for its own processes if it needs one."""
    authority = certificates.resolve() / "ca.crt" if certificates is not None else None
    if bind is None:
        return LinkAddress(federation.host, federation.port, authority)
    host, port = _split(bind)
    told: dict[str, str | int] = {"host": host, "port": port}
    if certificates is not None and not covers(certificates, LOCAL_NAME):
        own = _make_own_certificate(folder / OWN_CERTIFICATE)
        authority = own / "ca.crt"
        told |= {"certificate": str(own / "server.crt"), "key": str(own / "server.key")}
    return LinkAddress(LOCAL_NAME, port, authority, {VARIABLE: json.dumps(told)})


def _split(bind: str) -> tuple[str, int]:
    try:
        return split_address(bind)
    except ValueError as error:
        raise BindError(f"--bind: {error}") from None


def _make_own_certificate(folder: Path) -> Path:
    from farfield.deployment.credentials.create import make_authority, make_server_certificate

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    made = make_authority(folder, OWN_DAYS)
    make_server_certificate(folder, [LOCAL_NAME], OWN_DAYS)
    os.unlink(made.key)  # it has signed all that it will ever sign
    return folder.resolve()
