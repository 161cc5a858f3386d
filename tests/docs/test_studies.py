"""The studies behind the figures of the docs still run, on a few draws, and print what the pages state."""

from __future__ import annotations

import pytest

from studies.false_alarms import shared_training
from studies.new_site_coverage import simulated
from studies.power import found


def test_a_prediction_interval_covers_a_new_site_and_the_interval_of_the_mean_does_not() -> None:
    prediction, mean = simulated(sites=6, spread=0.6, rows=1000, draws=300)
    assert prediction == pytest.approx(0.95, abs=0.04)
    assert mean < 0.75


def test_far_out_domains_raise_false_alarms_and_equal_ones_do_not() -> None:
    assert shared_training(domains=6, shift=0.0, tail=30.0, draws=400) == pytest.approx(0.05, abs=0.035)
    assert shared_training(domains=6, shift=10.0, tail=3.0, draws=400) > 0.06


def test_two_points_are_seldom_found_with_four_domains() -> None:
    assert found(domains=4, seeds=3, domain_std=0.02, seed_std=0.04, draws=60) < 0.15
    assert found(domains=40, seeds=3, domain_std=0.01, seed_std=0.01, draws=20) > 0.9
