"""Calibration with scores so extreme that Newton's method does not find its way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from farfield.protocol import calibration
from farfield.protocol.calibration import NotDefined, logistic_intercept, logistic_slope


def sure(size: float, missed: int = 15, false: int = 5) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """100 events and 100 other rows at log odds ± `size`; so many events score low, so many other rows high."""
    events = np.repeat([True, False], 100)
    right = np.concatenate([np.arange(100) >= missed, np.arange(100) >= false])
    return np.where(events == right, size, -size), events


@pytest.mark.parametrize("size", [30.0, 33.0, 300.0])
def test_the_intercept_of_extreme_scores_is_exact(size: float) -> None:
    # 90 rows at + size are events for sure; of 110 at - size ten must be, so a - size = log(10 / 100).
    found = logistic_intercept(*sure(size))
    exact = size - math.log(10.0)
    error = (110 * (1 / 11) * (10 / 11)) ** -0.5
    assert found.value == pytest.approx(exact, abs=1e-6)
    assert found.low == pytest.approx(exact - 1.959964 * error, abs=1e-5)
    assert found.high == pytest.approx(exact + 1.959964 * error, abs=1e-5)


def test_the_intercept_makes_expected_events_equal_to_events() -> None:
    rng = np.random.default_rng(0)
    log_odds = rng.normal(-1.0, 8.0, 500)
    events = rng.random(500) < 0.4
    found = logistic_intercept(log_odds, events)
    assert expit(log_odds + found.value).sum() == pytest.approx(events.sum(), abs=1e-6)


def test_an_intercept_that_no_row_tells_is_refused() -> None:
    # As many events score low as other rows score high: any intercept between the two scores fits as well.
    with pytest.raises(NotDefined, match="too extreme"):
        logistic_intercept(*sure(30.0, 10, 10))
    with pytest.raises(NotDefined, match="one class"):
        logistic_intercept(np.zeros(5), np.ones(5, dtype=bool))


def test_a_slope_is_refused_where_the_gradient_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    log_odds, events = sure(2.0)
    # 85 of 90 rows at + 2 are events, 15 of 110 at - 2: two equations for two unknowns.
    exact = (math.log(85 / 5) - math.log(15 / 95)) / 4
    assert logistic_slope(log_odds, events).value == pytest.approx(exact, abs=1e-8)
    monkeypatch.setattr(calibration, "NEWTON_STEPS", 2)
    with pytest.raises(NotDefined, match="too extreme"):
        logistic_slope(log_odds, events)
