from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from farfield.protocol.against_prior import better_than_prior, compare_with_prior

DOMAINS = "abcd"


def by_domain(values: list[float], seeds: int = 2) -> dict[tuple[str, int], float]:
    return {(domain, seed): value for domain, value in zip(DOMAINS, values, strict=True) for seed in range(seeds)}


def test_a_useful_method_is_better_than_prior_by_a_one_sided_t_test() -> None:
    prior, method = by_domain([0.54, 0.64, 0.93, 0.75]), by_domain([0.70, 0.80, 0.94, 0.81])
    got = better_than_prior(method, prior, "accuracy")
    theirs = stats.ttest_1samp([0.16, 0.16, 0.01, 0.06], 0.0, alternative="greater")
    assert got.p_value == pytest.approx(theirs.pvalue)
    assert got.bound == pytest.approx(theirs.confidence_interval(0.95).low)
    assert (got.verdict, got.unit, got.n, got.better) == ("better than prior", "domains", 4, True)


def test_a_model_that_answers_the_commonest_class_is_not_better_than_prior() -> None:
    prior = by_domain([0.87, 0.85, 0.90, 0.88])
    assert better_than_prior(prior, prior, "accuracy").verdict == "not better than prior beyond chance"
    worse = {key: value - 0.05 * (key[0] in "ab") for key, value in prior.items()}
    assert better_than_prior(worse, prior, "accuracy").verdict == "not better than prior beyond chance"


def test_auroc_of_prior_is_a_half_by_definition() -> None:
    got = better_than_prior(by_domain([0.56, 0.61, 0.47, 0.68]), None, "auroc")
    theirs = stats.ttest_1samp([0.56, 0.61, 0.47, 0.68], 0.5, alternative="greater")
    assert got.p_value == pytest.approx(theirs.pvalue)
    assert got.verdict == "not better than prior beyond chance"
    assert better_than_prior(by_domain([0.76, 0.71, 0.77, 0.68]), None, "auroc").better
    with pytest.raises(ValueError, match="what 'prior' scores in 'accuracy' is not fixed"):
        better_than_prior(by_domain([0.5] * 4), None, "accuracy")


def test_a_lower_loss_is_better_than_prior() -> None:
    prior = by_domain([10.0, 12.0, 9.0, 11.0])
    method = {key: 0.8 * value for key, value in prior.items()}
    got = better_than_prior(method, prior, "mae")
    assert got.better
    assert got.bound is not None
    assert got.mean < got.bound < 0


def test_below_three_domains_five_seeds_decide_and_fewer_say_nothing() -> None:
    rng = np.random.default_rng(0)
    prior = {("a", seed): 0.6 for seed in range(6)}
    method = {key: 0.75 + rng.normal(0, 0.02) for key in prior}
    got = better_than_prior(method, prior, "accuracy")
    assert (got.verdict, got.unit, got.n) == ("better than prior", "seeds", 6)
    few = {key: value for key, value in method.items() if key[1] < 4}
    assert better_than_prior(few, prior, "accuracy").verdict == "too few to say"


def test_several_methods_are_corrected_together() -> None:
    prior = by_domain([0.5, 0.5, 0.5, 0.5])
    weak, strong = by_domain([0.52, 0.60, 0.54, 0.51]), by_domain([0.70, 0.71, 0.69, 0.70])
    assert better_than_prior(weak, prior, "accuracy").better is False
    barely = by_domain([0.53, 0.60, 0.57, 0.52])
    assert better_than_prior(barely, prior, "accuracy").better
    got = compare_with_prior({"b1": barely, "b2": barely, "b3": barely, "strong": strong}, prior, "accuracy")
    assert got["strong"].better
    assert not got["b1"].better
    assert got["b1"].bound is not None
    assert got["b1"].bound < 0


def test_the_same_gain_everywhere_has_no_spread_and_is_not_called_certain() -> None:
    prior = by_domain([0.5, 0.5, 0.5, 0.5])
    got = better_than_prior({key: value + 0.25 for key, value in prior.items()}, prior, "accuracy")
    assert (got.p_value, got.bound, got.verdict) == (1 / 16, None, "not better than prior beyond chance")
    diverged = better_than_prior({**prior, ("a", 0): math.nan}, prior, "accuracy")
    assert diverged.verdict == "too few to say"
