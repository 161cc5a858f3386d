"""Are the certificates, keys and their file modes right, at a site and at the server."""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from farfield.deployment.credentials.verify import (
    check_authority,
    check_host,
    check_private_key,
    check_public_key,
    check_server_files,
)
from farfield.deployment.doctor.check import Check, failed, ok, warning
from farfield.deployment.federation_file import FederationFile
from farfield.errors import UserError

#: OpenSSL's numbers of the problems that have a way out of their own.
NOT_YET_VALID, EXPIRED, OTHER_HOST, OTHER_ADDRESS = 9, 10, 62, 64
#: Days before the end of a certificate from which on there is a warning.
SOON = 30


def certificate_days(encoded: bytes | None) -> float:
    """Return for how many more days a certificate, in the binary form that TLS has, is valid."""
    from cryptography import x509

    assert encoded is not None
    until = x509.load_der_x509_certificate(encoded).not_valid_after_utc
    return (until - datetime.now(UTC)).total_seconds() / 86400


def verification_problem(error: ssl.SSLCertVerificationError, host: str, authority: Path) -> str:
    """Return a sentence about a server's certificate that is not trusted."""
    if error.verify_code in (OTHER_HOST, OTHER_ADDRESS):
        return f"the server's certificate is not for '{host}', which the federation file names; tell its operator"
    if error.verify_code == EXPIRED:
        return (
            "the server's certificate has expired, or this machine's clock is ahead; tell its operator, look at 'date'"
        )
    if error.verify_code == NOT_YET_VALID:
        now = time.strftime("%Y-%m-%d %H:%M")
        return f"the server's certificate is not valid yet: this machine's clock says {now}; is that right?"
    return (
        f"the server is not trusted: {error.verify_message}; its certificate must be signed by '{authority}': ask its "
        "operator for the right ca.crt, or somebody else answers in its place"
    )


def check_site_credentials(authority: Path | None, key: Path | None, site: str) -> Iterator[Check]:
    """Check what a site is given: the authority's certificate, and its own private key."""
    if authority is None:
        yield failed("authority", "no --ca; give the ca.crt from the server's operator")
    elif not authority.is_file():
        yield failed("authority", f"there is no file '{authority}' for --ca")
    else:
        yield _of(lambda: check_authority(authority), "authority", f"'{authority}' is a certificate")
    if key is None:
        yield failed("key", "no --key; make one with 'farfield certs node', and send the .pub to the server's operator")
        return
    if not key.is_file():
        yield failed("key", f"there is no file '{key}' for --key")
        return
    try:
        private = _of(lambda: check_private_key(key), "key", f"'{key}' is a private key")
    except PermissionError:
        private = failed("key", f"'{key}' cannot be read by this user; run as the user that owns it")
    yield private
    if private.status != "ok":
        return
    yield check_mode(key)
    if key.stem != site:
        yield warning(
            "key's name",
            f"the key is '{key.name}' and the site's name is '{site}'; the server lets a site in under the name of the "
            ".pub file that it was given",
        )
    else:
        yield ok("key's name", f"it is the site's, '{site}'")


def check_mode(path: Path) -> Check:
    """Check that a private key is for its owner alone."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return failed(
            "key's mode", f"'{path}' has mode {mode:04o}, so other users of this machine can use it; chmod 600 '{path}'"
        )
    return ok("key's mode", f"'{path}' has mode {mode:04o}, for its owner alone")


def check_server_credentials(
    federation: FederationFile, certificates: Path | None, keys: Sequence[Path]
) -> Iterator[Check]:
    """Check what a server is given: its certificate and key, and the sites' public keys."""
    if certificates is None:
        yield failed("certificate", "no --certs; make a certificate with 'farfield certs server FOLDER --host NAME'")
    else:
        yield from _check_certificates(federation, certificates)
    yield from _check_public_keys(federation, keys)


def _check_certificates(federation: FederationFile, folder: Path) -> Iterator[Check]:
    from cryptography import x509

    fits = _of(lambda: check_server_files(folder), "certificate", "server.crt and server.key belong together")
    yield fits
    if fits.status != "ok":
        return
    host = federation.host
    yield _of(lambda: check_host(folder, host), "certificate's name", f"it is for '{host}', where sites connect")
    for name in ("server.crt", "ca.crt"):
        found = x509.load_pem_x509_certificate((folder / name).read_bytes())
        days = (found.not_valid_after_utc - datetime.now(UTC)).total_seconds() / 86400
        begun = found.not_valid_before_utc <= datetime.now(UTC)
        yield _validity(name, days, begun, folder)
    yield _signed(folder)
    for name in ("server.key", "ca.key"):
        if (folder / name).exists():
            yield check_mode(folder / name)


def _validity(name: str, days: float, begun: bool, folder: Path) -> Check:
    check = f"{name}'s time"
    if not begun:
        return failed(check, f"'{folder / name}' is not valid yet; is this machine's clock right?")
    anew = f"make a new one: farfield certs server {folder} --force --host NAME"
    if days <= 0:
        return failed(check, f"'{folder / name}' has expired {-days:.0f} days ago; {anew}")
    if days < SOON:
        return warning(check, f"'{folder / name}' is valid for {days:.0f} more days; {anew}")
    return ok(check, f"valid for {days:.0f} more days")


def _signed(folder: Path) -> Check:
    """Check that the authority that sites are given has signed the server's certificate."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.check_hostname = False
    try:
        _shake_hands(context, server)
    except ssl.SSLCertVerificationError as error:
        return failed(
            "certificate's chain", f"server.crt is not signed by ca.crt in '{folder}': {error.verify_message}"
        )
    return ok("certificate's chain", "server.crt is signed by ca.crt, which sites are given")


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Make a TLS connection in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for end in (one, other):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _check_public_keys(federation: FederationFile, keys: Sequence[Path]) -> Iterator[Check]:
    found = [file for path in keys for file in (sorted(path.glob("*.pub")) if path.is_dir() else [path])]
    for path in keys:
        private = list(path.glob("*.key")) if path.is_dir() else []
        if private:
            yield failed(
                "sites' keys", f"'{private[0]}' is a private key, which belongs at its site alone; remove it from here"
            )
    wanted = federation.sites + federation.evaluating
    if not found:
        yield failed("sites' keys", f"none; give --key the .pub files of {wanted} sites")
        return
    for file in found:
        if not file.is_file():
            yield failed("sites' keys", f"there is no key '{file}'")
            return
        bad = _of(lambda file=file: check_public_key(file), "sites' keys", "")
        if bad.status != "ok":
            yield bad
            return
    names = ", ".join(file.stem for file in found)
    if len(found) < wanted:
        yield warning(
            "sites' keys", f"{len(found)} ({names}), and {wanted} sites are waited for; ask the others for theirs"
        )
    else:
        yield ok("sites' keys", f"{len(found)} ({names})")


def _of(check: object, name: str, good: str) -> Check:
    """Run a check that raises, and return its outcome."""
    assert callable(check)
    try:
        check()
    except UserError as error:
        return failed(name, str(error))
    return ok(name, good)
