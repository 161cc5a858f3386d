"""The public keys of the other sites, by which a site knows them in a secure sum whatever the server says.

The operators exchange their `.pub` files among themselves, not by way of the server, and name the folder in
`site.toml`:

peers = "peers"             # amber.pub, birch.pub, …: one file per site, named as the site
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from farfield.deployment.credentials.verify import check_private_key, check_public_key
from farfield.deployment.site.site_file import SiteFile
from farfield.federation.secure_sums.members import Identity


def load_identity(site: SiteFile, key: Path | None) -> Identity | None:
    """Return what a site signs with and the sites that it knows; None if its file names no peers."""
    if site.peers is None:
        return None
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    folder = site.path.parent / site.peers
    if not folder.is_dir():
        raise site.refusal("peers", f"there is no folder '{folder}'; put the other sites' .pub files into it")
    if key is None:
        raise site.refusal("peers", "a site that knows its peers signs with its own key; give --key")
    check_private_key(key)
    private = load_ssh_private_key(key.read_bytes(), password=None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise site.refusal("peers", f"'{key}' is not a key that 'farfield certs node' has made")
    known = {path.stem: _check_by(path, site) for path in sorted(folder.glob("*.pub"))}
    return Identity(lambda message: private.sign(message, ec.ECDSA(SHA256())), known)


def _check_by(path: Path, site: SiteFile) -> Callable[[bytes, bytes], bool]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    check_public_key(path)
    public = load_ssh_public_key(path.read_bytes())
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise site.refusal("peers", f"'{path}' is not a key that 'farfield certs node' has made")

    def is_signed(message: bytes, signature: bytes) -> bool:
        try:
            public.verify(signature, message, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True

    return is_signed
