"""Shamir's shares against known numbers, a naive implementation, and what too few of them say."""

from __future__ import annotations

import contextlib
import itertools
import random
from fractions import Fraction

import pytest

from farfield.federation.secure_sums.shamir import PRIME, join, split


def test_the_field_is_that_of_the_smallest_prime_above_all_secrets() -> None:
    """By Miller and Rabin's test, with 40 bases; the numbers between 2^256 and it are composite."""
    assert _is_prime(PRIME)
    assert not any(_is_prime(number) for number in range(2**256, PRIME))


def test_shares_are_the_values_of_the_polynomial() -> None:
    """The usual worked example, f(x) = 1234 + 166 x + 94 x²: f(1) = 1494, f(2) = 1942, f(3) = 2578, …"""
    coefficients = iter([166, 94])
    shares = split((1234).to_bytes(32, "big"), 6, 3, draw=lambda below: next(coefficients))
    assert [int.from_bytes(share, "big") for share in shares] == [1494, 1942, 2578, 3402, 4414, 5614]


@pytest.mark.parametrize(("shares", "needed"), [(3, 2), (4, 3), (5, 4), (6, 1), (4, 4)])
def test_any_shares_that_suffice_give_the_secret(shares: int, needed: int) -> None:
    secret = random.Random(shares).randbytes(32)
    made = dict(enumerate(split(secret, shares, needed), 1))
    for count in range(needed, shares + 1):
        for chosen in itertools.combinations(made, count):
            given = {number: made[number] for number in chosen}
            assert join(given, needed) == secret == _naive(given, needed)
    with pytest.raises(ValueError, match="too few"):
        join(dict(list(made.items())[: needed - 1]), needed)


def test_the_largest_and_the_smallest_secret_come_back() -> None:
    for secret in (bytes(32), b"\xff" * 32):
        assert join(dict(enumerate(split(secret, 5, 3), 1)), 3) == secret


def test_too_few_shares_fit_every_secret() -> None:
    """For two shares of three and any secret there is exactly one polynomial, so they exclude none."""
    first, second = (int.from_bytes(share, "big") for share in split(random.Random(1).randbytes(32), 3, 3)[:2])
    for secret in (0, 7, 2**256 - 1):
        # f(x) = secret + a x + b x² with f(1) = first and f(2) = second has the one solution (a, b).
        b = (second - 2 * first + secret) * pow(2, -1, PRIME) % PRIME
        a = (first - secret - b) % PRIME
        assert [(secret + a * x + b * x * x) % PRIME for x in (1, 2)] == [first, second]


def test_shares_are_drawn_anew() -> None:
    assert split(bytes(32), 3, 2) != split(bytes(32), 3, 2)


def test_shares_of_different_secrets_give_no_secret_or_another() -> None:
    one, other = split(b"\x01" * 32, 3, 2), split(b"\x02" * 32, 3, 2)
    with contextlib.suppress(ValueError):
        assert join({1: one[0], 2: other[1]}, 2) not in (b"\x01" * 32, b"\x02" * 32)
    # Values 2^256 at 1 and at 2 are those of a constant, which is no secret of 32 bytes.
    with pytest.raises(ValueError, match="do not belong to one secret"):
        join(dict.fromkeys((1, 2), (2**256).to_bytes(33, "big")), 2)


def _naive(shares: dict[int, bytes], needed: int) -> bytes:
    """Lagrange's formula in fractions of whole numbers, and the field only at the end."""
    total = 0
    chosen = dict(list(shares.items())[-needed:])  # others than `join` takes
    for x, share in chosen.items():
        factor = Fraction(1)
        for other in chosen:
            factor *= Fraction(other, other - x) if other != x else 1
        total += int.from_bytes(share, "big") * factor.numerator * pow(factor.denominator, -1, PRIME)
    return (total % PRIME).to_bytes(32, "big")


def _is_prime(number: int) -> bool:
    if number % 2 == 0:
        return False
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    draws = random.Random(0)
    for _ in range(40):
        value = pow(draws.randrange(2, number - 1), odd, number)
        if value in (1, number - 1):
            continue
        for _ in range(twos - 1):
            value = value * value % number
            if value == number - 1:
                break
        else:
            return False
    return True
