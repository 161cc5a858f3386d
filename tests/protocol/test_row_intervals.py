from __future__ import annotations

import numpy as np
import pytest

from farfield.protocol.row_intervals import bootstrap_interval, wilson_interval


def test_wilson_interval_is_the_textbook_one() -> None:
    # Newcombe (1998), table I: 81 of 263 and 15 of 148.
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1.0, 29) == pytest.approx((0.8830, 1.0), abs=5e-5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson_interval(1.2, 5)


def test_bootstrap_interval_is_near_the_normal_one_and_repeats() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    low, high = bootstrap_interval(values) or (0.0, 0.0)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)
    assert bootstrap_interval(values) == (low, high)
    assert bootstrap_interval([1.0]) is None
    assert bootstrap_interval([1.0, float("inf")]) is None
