"""Shamir's secret sharing: any `threshold` shares give the secret, fewer say nothing about it.

    Shamir. How to Share a Secret. Communications of the ACM 22(11), 1979.

A secret of 32 bytes is the value at 0 of a random polynomial of degree `threshold` − 1 over the integers modulo a
prime; share x is its value at x = 1, 2, …. The prime is the smallest above 2^256, so that every such secret fits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache

PRIME = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, shares: int, threshold: int, draw: Callable[[int], int] = secrets.randbelow) -> list[bytes]:
    """Return the shares 1, 2, … of a secret. `draw` returns a random integer below its argument."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= shares:
        raise ValueError(f"{threshold} of {shares} shares cannot be needed")
    coefficients = [int.from_bytes(secret, "big"), *(draw(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in range(1, shares + 1)]


def _value(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from shares by their numbers. Raises ValueError for too few, or where they give no secret."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares are too few; {threshold} are needed")
    chosen = dict(sorted(shares.items())[:threshold])
    factors = _factors(tuple(chosen))
    secret = sum(int.from_bytes(share, "big") * factor for share, factor in zip(chosen.values(), factors, strict=True))
    secret %= PRIME
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("the shares do not belong to one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=16)
def _factors(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's factors at 0, the same for all secrets that are joined from shares of these numbers."""
    factors = []
    for x in numbers:
        above = below = 1
        for other in numbers:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)
