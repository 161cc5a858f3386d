"""Keys, masks and seals against the RFCs and naive implementations."""

from __future__ import annotations

import hashlib
import hmac
import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from farfield.federation.secure_sums.masks import (
    BadSeal,
    agreed_secret,
    derived_key,
    key_stream,
    new_private_key,
    pair_mask,
    public_key,
    seal,
    self_mask,
    unseal,
)

ALICE, BOB = (
    bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"),
    bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"),
)


def test_keys_agree_as_in_rfc_7748_section_6_1() -> None:
    assert public_key(ALICE).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert public_key(BOB).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert agreed_secret(ALICE, public_key(BOB)).hex() == agreed_secret(BOB, public_key(ALICE)).hex() == shared


def test_a_public_key_that_leaves_nothing_secret_is_refused() -> None:
    with pytest.raises(ValueError, match=r"."):
        agreed_secret(ALICE, bytes(32))


RFC_5869 = [
    (
        "000102030405060708090a0b0c",
        "f0f1f2f3f4f5f6f7f8f9",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    ("", "", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
]


@pytest.mark.parametrize(("salt", "info", "expected"), RFC_5869)
def test_keys_are_derived_as_in_rfc_5869(salt: str, info: str, expected: str) -> None:
    given = bytes.fromhex("0b" * 22)
    made = HKDF(algorithm=SHA256(), length=42, salt=bytes.fromhex(salt) or None, info=bytes.fromhex(info)).derive(given)
    assert made.hex() == expected == _naive_hkdf(given, bytes.fromhex(salt), bytes.fromhex(info), 42).hex()


def test_a_derived_key_is_that_of_the_words_that_name_its_purpose() -> None:
    secret = b"s" * 32
    info = json.dumps(["farfield secure sums 1", "pair", "sum", "a", "b"]).encode()
    assert derived_key(secret, "pair", "sum", "a", "b") == _naive_hkdf(secret, b"", info, 32)
    made = {derived_key(secret, *words) for words in (("a", "bc"), ("ab", "c"), ("a", "b", "c"), ("abc",))}
    assert len(made) == 4


def _naive_hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    key = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    block, made = b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), hashlib.sha256)
        made += block
    return made[:length]


def test_the_key_stream_is_aes_of_a_counter() -> None:
    key = bytes(range(32))
    one_by_one = Cipher(AES256(key), ECB()).encryptor()
    blocks = b"".join(one_by_one.update(number.to_bytes(16, "big")) for number in range(3))
    assert key_stream(key, 5).tolist() == [int.from_bytes(blocks[i : i + 8], "little") for i in range(0, 40, 8)]


def test_the_masks_of_two_sites_cancel() -> None:
    one = pair_mask(ALICE, public_key(BOB), "sum", "alice", "bob", 1000)
    other = pair_mask(BOB, public_key(ALICE), "sum", "bob", "alice", 1000)
    assert not np.array_equal(one, np.zeros(1000))
    assert np.array_equal(one + other, np.zeros(1000, dtype=np.uint64))


def test_masks_of_other_sums_and_sites_are_others() -> None:
    made = [
        pair_mask(ALICE, public_key(BOB), "1", "alice", "bob", 4),
        pair_mask(ALICE, public_key(BOB), "2", "alice", "bob", 4),
        pair_mask(ALICE, public_key(BOB), "1", "alice", "bob2", 4),
        self_mask(ALICE, "1", "alice", 4),
        self_mask(ALICE, "1", "bob", 4),
        self_mask(ALICE, "2", "alice", 4),
    ]
    assert len({mask.tobytes() for mask in made}) == len(made)


def test_only_the_receiver_of_the_same_sum_opens_a_seal_and_only_as_it_was_sent() -> None:
    eve = new_private_key()
    box = seal(ALICE, public_key(BOB), "sum", "alice", "bob", b"two shares")
    assert unseal(BOB, public_key(ALICE), "sum", "alice", "bob", box) == b"two shares"
    tries = [
        (eve, public_key(ALICE), "sum", "alice", "bob", box),
        (BOB, public_key(ALICE), "another", "alice", "bob", box),
        (BOB, public_key(ALICE), "sum", "carol", "bob", box),
        (ALICE, public_key(BOB), "sum", "bob", "alice", box),  # sent back to where it came from
        (BOB, public_key(ALICE), "sum", "alice", "bob", bytes([box[0] ^ 1]) + box[1:]),
        (BOB, public_key(ALICE), "sum", "alice", "bob", box[:-1]),
    ]
    for arguments in tries:
        with pytest.raises(BadSeal):
            unseal(*arguments)
