"""The primitives of a secure sum, all from `cryptography`: X25519, HKDF-SHA256, AES-256-CTR and AES-256-GCM.

Every key is derived for one purpose, in one sum, between two named sites (or for one site alone), so that no key stream
is used twice. Integers are unsigned with 64 bits and wrap around; a mask is uniform over them.
"""

from __future__ import annotations

import json

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Integers = NDArray[np.uint64]

KEY_BYTES, TAG_BYTES = 32, 16
#: A nonce of its own is not needed: each key seals one message.
_NONCE = bytes(12)


class BadSeal(Exception):
    """A sealed message that was altered, or was sealed for another site or another sum."""


def new_private_key() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_secret(private: bytes, public: bytes) -> bytes:
    """Return what two sites agree on. Raises ValueError for a public key with which there is nothing secret."""
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def derived_key(secret: bytes, *purpose: str) -> bytes:
    """Return a key of 32 bytes for one purpose, which the words name."""
    info = json.dumps(["farfield secure sums 1", *purpose], ensure_ascii=True).encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def key_stream(key: bytes, count: int) -> Integers:
    """Return so many integers from a key, uniform for whoever does not know it."""
    encryptor = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)) + encryptor.finalize(), dtype="<u8").astype(np.uint64)


def self_mask(seed: bytes, sum_id: str, site: str, count: int) -> Integers:
    """Return the mask that a site makes from its own seed."""
    return key_stream(derived_key(seed, "self", sum_id, site), count)


def pair_mask(private: bytes, public: bytes, sum_id: str, one: str, other: str, count: int) -> Integers:
    """Return the mask of two sites as the site `one` adds it: the other's is the same with the other sign."""
    first, second = sorted((one, other))
    mask = key_stream(derived_key(agreed_secret(private, public), "pair", sum_id, first, second), count)
    return mask if one == first else np.negative(mask)


def seal(private: bytes, public: bytes, sum_id: str, sender: str, receiver: str, message: bytes) -> bytes:
    """Return a message that only the receiver can read, and only as this sender's in this sum."""
    key = derived_key(agreed_secret(private, public), "seal", sum_id, sender, receiver)
    return AESGCM(key).encrypt(_NONCE, message, None)


def unseal(private: bytes, public: bytes, sum_id: str, sender: str, receiver: str, sealed: bytes) -> bytes:
    """Return the message that a sender sealed for this receiver. Raises BadSeal."""
    key = derived_key(agreed_secret(private, public), "seal", sum_id, sender, receiver)
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise BadSeal(f"what came from '{sender}' was altered on its way") from None
