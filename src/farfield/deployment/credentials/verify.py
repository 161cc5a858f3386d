"""Verify certificates and keys before anything is started: Flower reports a bad one late and at length."""

from __future__ import annotations

import shlex
import ssl
import stat
from collections.abc import Iterable
from pathlib import Path

from farfield.errors import UserError


class CredentialsError(UserError):
    """A certificate or key that cannot be used, in one sentence."""


def check_authority(path: Path) -> None:
    """Refuse what is not the certificate of an authority."""
    try:
        ssl.create_default_context(cafile=str(path))
    except (ssl.SSLError, OSError):
        raise CredentialsError(f"'{path}' is no certificate; give --ca the ca.crt from the server's operator") from None


def check_private_key(path: Path) -> None:
    """Refuse what is not a site's private key, such as its public half."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CredentialsError(
            f"'{path}' is no private key without a password in the form of OpenSSH; give --key the .key that "
            "'farfield certs node' has made"
        ) from None


def open_key_warnings(paths: Iterable[Path]) -> list[str]:
    """Return one sentence for each private key that other users of this machine can read or replace."""
    found = []
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # a file that is missing is refused elsewhere, with its own sentence
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            found.append(
                f"the private key '{path}' has the mode {mode:04o}, and others on this machine can use it; close it "
                f"with 'chmod 600 {shlex.quote(str(path))}', and make a new one if others may have read it"
            )
    return found


def check_public_key(path: Path) -> None:
    """Refuse what is not a site's public key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        raise CredentialsError(
            f"'{path}' is no public key; give --key the .pub that 'farfield certs node' has made at the site"
        ) from None


def check_server_files(folder: Path) -> None:
    """Refuse a folder without a server's certificate and its key, or with two that do not belong together."""
    missing = [name for name in ("server.crt", "server.key", "ca.crt") if not (folder / name).is_file()]
    if missing:
        raise CredentialsError(
            f"'{folder}' has no {' and no '.join(missing)}; make a certificate with 'farfield certs server {folder}'"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / "server.crt", folder / "server.key", password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror or str(error)
        raise CredentialsError(
            f"server.crt and server.key in '{folder}' cannot be used together ({why}); make them anew with "
            f"'farfield certs server {folder} --force'"
        ) from None


def check_host(folder: Path, host: str) -> None:
    """Refuse a certificate that is for other hosts than the one that sites connect to."""
    names = _names_of(folder / "server.crt")
    if not covers(folder, host):
        raise CredentialsError(
            f"'{folder / 'server.crt'}' is for {', '.join(names) or 'no host'}, and sites connect to '{host}', as the "
            f"federation file says; make one for it with 'farfield certs server {folder} --force --host {host}'"
        )


def covers(folder: Path, host: str) -> bool:
    """Return whether the server's certificate in a folder is for a host."""
    return any(_is_for(name, host) for name in _names_of(folder / "server.crt"))


def _names_of(certificate: Path) -> list[str]:
    """The hosts and addresses that a certificate is for."""
    from cryptography import x509

    try:
        extensions = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
        return [str(name.value) for name in extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
    except (ValueError, x509.ExtensionNotFound):
        return []


def _is_for(name: str, host: str) -> bool:
    """Whether a certificate's name covers a host; '*.example.org' does so for one label."""
    name, host = name.lower(), host.lower()
    return name == host or (name.startswith("*.") and host.partition(".")[2] == name[2:])
