"""Fixed-point integers: the stated error, the stated range, no overflow."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farfield.federation.secure_sums.quantise import BITS, DEFAULT_RANGE, MOST_CLIENTS, FixedPoint, OutOfRange


def test_known_numbers_become_known_integers() -> None:
    fixed = FixedPoint(2.0**26)
    assert fixed.step == 2.0**-26
    given = torch.tensor([0.0, 1.0, -1.0, 2.0**-26, 0.5 * 2.0**-26, 1.5 * 2.0**-26, -0.75], dtype=torch.float64)
    # Ties go to the even integer: half a step to 0, one and a half to 2.
    assert fixed.integers("x", given).tolist() == [0, 2**26, -(2**26), 1, 0, 2, -(3 * 2**24)]
    assert fixed.integers("x", 3, weight=7.0).tolist() == 21 * 2**26


@given(
    st.lists(st.lists(st.floats(-1000, 1000, width=32), min_size=3, max_size=3), min_size=1, max_size=20),
    st.integers(1, 10**4),
)
def test_the_sum_differs_from_the_exact_one_by_at_most_half_a_step_per_client(
    rows: list[list[float]], weight: int
) -> None:
    fixed = FixedPoint()
    total = sum(fixed.integers("x", torch.tensor(row), float(weight)) for row in rows)
    assert isinstance(total, torch.Tensor)
    for column, found in enumerate(fixed.numbers(total).tolist()):
        exact = sum(Fraction(row[column]) * weight for row in rows)  # without any rounding
        assert abs(Fraction(found) - exact) <= len(rows) * Fraction(fixed.step) / 2


def test_the_order_of_clients_changes_no_bit() -> None:
    fixed, generator = FixedPoint(), torch.Generator().manual_seed(0)
    rows = [fixed.integers("x", torch.randn(100, generator=generator)) for _ in range(50)]
    forwards, backwards = sum(rows), sum(reversed(rows))
    assert torch.equal(torch.as_tensor(forwards), torch.as_tensor(backwards))


@pytest.mark.parametrize("value", [2.0**26 * 1.0001, -1e30, float("inf"), float("nan")])
def test_a_number_beyond_the_range_is_refused_and_not_cut(value: float) -> None:
    with pytest.raises(OutOfRange, match=r"'update' has the value .* secure_range"):
        FixedPoint().integers("update", torch.tensor([0.0, value], dtype=torch.float64))


def test_the_largest_sum_does_not_overflow() -> None:
    largest = FixedPoint().integers("x", DEFAULT_RANGE)
    assert int(largest) == 2**BITS
    assert int(largest) * MOST_CLIENTS < 2**63 <= int(largest) * (MOST_CLIENTS + 1)
    assert FixedPoint().possible(largest * MOST_CLIENTS, MOST_CLIENTS)
    assert not FixedPoint().possible(largest * 4, 3)


def test_only_a_power_of_two_is_a_range() -> None:
    for limit in (3.0, 0.0, -2.0, float("inf")):
        with pytest.raises(ValueError, match="power of two"):
            FixedPoint(limit)
    assert FixedPoint(2.0**10).step == 2.0**-42
