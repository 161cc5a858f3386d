"""Create certificates and keys for a federation: a development CA, the server's certificate, one key pair per site.

    make_authority(folder, days)                   # ca.crt for the sites; ca.key stays secret
    make_server_certificate(folder, hosts, days)   # server.crt and server.key, signed by that CA
    make_node_key(folder, name)                    # NAME.key stays at the site, NAME.pub goes to the server

TLS proves to a site that it is connected to its server, and encrypts the connection. A site's key pair proves to the
server which site it is. An organisation that has its own CA uses that one and needs only the node keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from farfield.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_DAYS = 36500
#: A certificate is valid from this much earlier, because the clocks of two machines differ.
CLOCKS = timedelta(hours=1)

_PRIVATE, _PUBLIC = 0o600, 0o644
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


class CertificateError(UserError):
    """A certificate or key that cannot be made, in one sentence."""


@dataclass(frozen=True)
class Authority:
    """A CA's files."""

    certificate: Path
    key: Path
    until: datetime


@dataclass(frozen=True)
class ServerCertificate:
    """A server's files, and the names that it may be reached by."""

    certificate: Path
    key: Path
    hosts: tuple[str, ...]
    until: datetime


@dataclass(frozen=True)
class NodeKey:
    """A site's key pair."""

    private: Path
    public: Path


def make_authority(folder: Path, days: int, *, force: bool = False) -> Authority:
    """Create a CA: `ca.crt`, which sites trust, and `ca.key`, which signs."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    _check_days(days)
    _check_free([key, certificate], force, "what it has signed would not be trusted any more")
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Farfield development CA")])
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, name, private.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    made = builder.sign(private, hashes.SHA256())
    _write(key, _pem(private), _PRIVATE, force)
    _write(certificate, made.public_bytes(Encoding.PEM), _PUBLIC, force)
    return Authority(certificate, key, made.not_valid_after_utc)


def has_authority(folder: Path) -> bool:
    """Return whether a folder has a CA. Half of one is refused, because a new other half would not fit."""
    here = [name for name in ("ca.crt", "ca.key") if (folder / name).exists()]
    if len(here) == 1:
        other = "ca.key" if here == ["ca.crt"] else "ca.crt"
        raise CertificateError(f"'{folder}' has {here[0]} but not {other}; bring it there, or use another folder")
    return bool(here)


def check_server_certificate(folder: Path, hosts: Sequence[str], days: int, *, force: bool = False) -> None:
    """Reject invalid host names, an invalid validity period, and a key that exists already."""
    if not hosts:
        raise CertificateError("a server's certificate needs at least one name or address that sites reach it by")
    for host in hosts:
        _subject_name(host)
    _check_days(days)
    paths = [folder / "server.key", folder / "server.crt"]
    _check_free(paths, force, "a server that runs with it would have to be started anew")


def make_server_certificate(
    folder: Path, hosts: Sequence[str] = LOOPBACK, days: int = 365, *, force: bool = False
) -> ServerCertificate:
    """Create `server.crt` and `server.key` for a server with these names, signed by the folder's CA."""
    check_server_certificate(folder, hosts, days, force=force)
    names = {host: _subject_name(host) for host in hosts}
    certificate, key = folder / "server.crt", folder / "server.key"
    authority, signing = _read_authority(folder)
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Farfield server")])
    builder = (
        _builder(subject, authority.subject, private.public_key(), days, authority.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(list(names.values())), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    made = builder.sign(signing, hashes.SHA256())
    _write(key, _pem(private), _PRIVATE, force)
    _write(certificate, made.public_bytes(Encoding.PEM), _PUBLIC, force)
    return ServerCertificate(certificate, key, tuple(names), made.not_valid_after_utc)


def check_node_key(folder: Path, name: str, *, force: bool = False) -> None:
    """Reject a name that is no file name, and a key that exists already."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name) or name.lower() in ("ca", "server"):
        raise CertificateError(
            f"{name!r} cannot name a key; use letters, digits, '-', '_' and '.', and neither 'ca' nor 'server'"
        )
    paths = [folder / f"{name}.key", folder / f"{name}.pub"]
    _check_free(paths, force, "the server would have to register the new one")


def make_node_key(folder: Path, name: str, *, force: bool = False) -> NodeKey:
    """Create a site's key pair on the curve P-384, in the format that Flower reads: OpenSSH."""
    check_node_key(folder, name, force=force)
    made = NodeKey(folder / f"{name}.key", folder / f"{name}.pub")
    private = ec.generate_private_key(ec.SECP384R1())
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(made.private, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), _PRIVATE, force)
    _write(made.public, public + f" {name}\n".encode(), _PUBLIC, force)
    return made


def _check_days(days: int) -> None:
    if not 1 <= days <= MOST_DAYS:
        raise CertificateError(f"a certificate cannot be valid for {days} days; give 1 to {MOST_DAYS}")


def _check_free(paths: Sequence[Path], force: bool, because: str) -> None:
    for path in paths:
        if path.exists() and not force:
            raise CertificateError(f"'{path}' is there and is kept ({because}); --force makes a new one")


def _subject_name(host: str) -> x509.GeneralName:
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        if _HOST.fullmatch(host) and len(host) <= 253 and not host.replace(".", "").isdigit():
            return x509.DNSName(host)
        raise CertificateError(
            f"{host!r} is no host name or address; give what sites connect to, without a port, such as "
            "fl.example.org or 10.0.0.7"
        ) from None
    if address.is_unspecified:
        raise CertificateError(f"{host} is an address to listen on; give one that sites connect to")
    return x509.IPAddress(address)


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if not has_authority(folder):
        raise CertificateError(f"'{folder}' has no CA; make one with `farfield certs server`")
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"the CA in '{folder}' cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CertificateError(f"the CA in '{folder}' cannot be used: ca.key is not the key of ca.crt")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise CertificateError(
            f"the CA in '{folder}' was valid until {certificate.not_valid_after_utc:%Y-%m-%d}; make a new one in "
            "another folder, and send its ca.crt to the sites"
        )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int, latest: datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    until = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(min(until, latest) if latest is not None else until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int, force: bool) -> None:
    """A new file, which is never open to others for a moment if its mode is not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if force:
        path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
