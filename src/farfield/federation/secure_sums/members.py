"""Who takes part in a secure sum, with which keys, and how many of them must stay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from farfield.federation.secure_sums.masks import KEY_BYTES

#: Both public keys of a site, end to end.
KEYS_BYTES = 2 * KEY_BYTES
#: A longer signature is refused before it is read.
LONGEST_SIGNATURE = 512
_SIGNED = "farfield secure sums 1, keys of a site"
_SURVIVORS = "farfield secure sums 1, sites whose integers have arrived"


@dataclass(frozen=True)
class PublicKeys:
    """The public keys of a site for one sum: one to seal shares for it, one to agree on masks with it."""

    seal: bytes
    mask: bytes
    #: By the site's own key, where the sites know one another's; else empty.
    signature: bytes = b""

    @classmethod
    def read(cls, both: bytes, signature: bytes = b"") -> PublicKeys:
        if len(both) != KEYS_BYTES or len(signature) > LONGEST_SIGNATURE:
            raise ValueError(f"public keys have {KEYS_BYTES} bytes and a short signature")
        return cls(both[:KEY_BYTES], both[KEY_BYTES:], signature)

    @property
    def both(self) -> bytes:
        return self.seal + self.mask


@dataclass(frozen=True)
class Identity:
    """What a site signs its keys with, and how it checks the signatures of the sites that it knows by name."""

    sign: Callable[[bytes], bytes]
    #: By name a check of (message, signature), which returns whether the signature is that site's.
    known: Mapping[str, Callable[[bytes, bytes], bool]]


def signed_message(sum_id: str, site: str, keys: PublicKeys) -> bytes:
    """Return what a site signs: its keys are its own, and are for this sum."""
    return json.dumps([_SIGNED, sum_id, site, keys.both.hex()]).encode()


def survivors_message(context: str, survivors: Iterable[str]) -> bytes:
    """Return what a site signs so that all sites are told the same list of sites whose integers have arrived."""
    return json.dumps([_SURVIVORS, context, sorted(survivors)]).encode()


def threshold(members: int) -> int:
    """Return how many of the members must stay for the sum to be had: two thirds, rounded up."""
    return -(-2 * members // 3)


def context(sum_id: str, members: Mapping[str, PublicKeys]) -> str:
    """Return a name for the sum with exactly these members and keys: whoever was told others has another one."""
    listed = [[name, members[name].both.hex()] for name in sorted(members)]
    return hashlib.sha256(json.dumps([sum_id, listed]).encode()).hexdigest()


def digest(names: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()[:32]
