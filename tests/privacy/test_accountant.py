"""ε equals reference calculations that share no code with the accountant."""

from __future__ import annotations

import math

import pytest

from farfield.privacy.accountant import MOST_DIFFERENT, PrivacyError, epsilon_of, largest_epsilon, noise_for
from farfield.privacy.release import Release
from tests.privacy.references import (
    composed_delta,
    epsilon_from,
    gaussian_delta,
    renyi_bound,
    sampled_delta,
)

pytest.importorskip("dp_accounting")


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "times"), [(0.5, 1), (1.0, 1), (1.0, 10), (4.0, 10), (4.0, 300), (20.0, 300)])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_composed_gaussians_cost_what_the_analytic_gaussian_says(noise: float, times: int, delta: float) -> None:
    exact = epsilon_from(lambda e: gaussian_delta(e, noise, times), delta)
    found = epsilon_of({Release(noise, 1.0, times): 1}, delta)
    assert exact * (1 - 1e-6) <= found <= exact + max(1e-3, 1e-3 * exact)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "times"), [(1.0, 10), (6.0, 100), (8.5, 200)])
def test_epsilon_lies_below_the_renyi_bound_and_not_far_below(noise: float, times: int) -> None:
    found = epsilon_of({Release(noise, 1.0, 1): times}, 1e-5)
    bound = renyi_bound(noise, times, 1e-5)
    assert 0.75 * bound < found < bound


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.9])
def test_one_sampled_gaussian_costs_what_the_closed_form_says(noise: float, rate: float) -> None:
    exact = epsilon_from(lambda e: sampled_delta(e, noise, rate), 1e-5)
    found = epsilon_of({Release(noise, rate, 1): 1}, 1e-5)
    assert exact - 1e-6 <= found <= exact + 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "times"), [(1.0, 0.1, 100), (2.0, 0.5, 60), (1.0, 0.02, 1000)])
def test_many_sampled_gaussians_cost_what_a_convolution_says(noise: float, rate: float, times: int) -> None:
    exact = epsilon_from(lambda e: composed_delta(e, noise, rate, times), 1e-5)
    found = epsilon_of({Release(noise, rate, times): 1}, 1e-5)
    assert found == pytest.approx(exact, rel=0.02)


def test_the_references_agree_where_they_meet() -> None:
    assert sampled_delta(1.3, 2.0, 1 - 1e-12) == pytest.approx(gaussian_delta(1.3, 2.0), rel=1e-6)
    assert composed_delta(1.0, 2.0, 0.3, 1) == pytest.approx(sampled_delta(1.0, 2.0, 0.3), rel=0.01)
    assert composed_delta(2.0, 3.0, 1 - 1e-9, 9) == pytest.approx(gaussian_delta(2.0, 3.0, 9), rel=0.01)


def test_steps_rounds_and_phases_add_up_however_they_are_cut() -> None:
    together = epsilon_of({Release(2.0, 0.3, 40): 1}, 1e-5)
    assert epsilon_of({Release(2.0, 0.3, 4): 10}, 1e-5) == together
    assert epsilon_of({Release(2.0, 0.3, 4): 5, Release(2.0, 0.3, 20): 1}, 1e-5) == together


def test_no_noise_is_no_privacy_and_no_release_costs_nothing() -> None:
    assert epsilon_of({Release(0.0, 0.5, 1): 1}, 1e-5) == math.inf
    assert epsilon_of({Release(1.0, 1.0, 1): 1, Release(0.0, 1.0, 1): 1}, 1e-5) == math.inf
    assert epsilon_of({}, 1e-5) == 0.0


@pytest.mark.slow
def test_four_sites_and_a_hundred_rounds_need_a_noise_multiplier_of_six_to_eight_and_a_half() -> None:
    one = noise_for(8.0, 1e-5, lambda noise: {Release(noise, 1.0, 1): 100})
    two = noise_for(8.0, 1e-5, lambda noise: {Release(noise, 1.0, 1): 200})
    assert (one, two) == pytest.approx((6.0, 8.5), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_noise_that_is_found_costs_the_epsilon_that_was_asked_for(epsilon: float) -> None:
    def releases(noise: float) -> dict[Release, int]:
        return {Release(noise, 0.16, 7): 20}

    noise = noise_for(epsilon, 1e-5, releases)
    assert epsilon * 0.99 < epsilon_of(releases(noise), 1e-5) <= epsilon


def test_an_epsilon_that_is_none_is_refused() -> None:
    with pytest.raises(PrivacyError, match="epsilon = 0"):
        noise_for(0.0, 1e-5, lambda noise: {Release(noise, 1.0, 1): 1})


@pytest.mark.slow
def test_the_largest_of_many_clients_is_bounded_from_above() -> None:
    rows = range(40, 40 + 8 * (MOST_DIFFERENT + 3), 8)
    clients = [{Release(5.0, 16 / n, -(-n // 16)): 10} for n in rows]
    assert len(clients) > MOST_DIFFERENT
    exact = max(epsilon_of(of, 1e-5) for of in clients)
    found = largest_epsilon(clients, 1e-5)
    assert exact <= found <= 1.35 * exact
    assert largest_epsilon(clients[:3], 1e-5) == max(epsilon_of(of, 1e-5) for of in clients[:3])
