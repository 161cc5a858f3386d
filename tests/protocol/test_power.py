from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from farfield.protocol.power import Target, detectable, domains_sentence, power, seeds_needed, target_for, units_needed
from farfield.protocol.statistics import compare, paired_difference


@pytest.mark.parametrize(("n", "level"), [(3, 0.05), (4, 0.0125), (6, 0.05), (25, 0.01)])
def test_power_is_that_of_the_noncentral_t_distribution(n: int, level: float) -> None:
    bar = stats.t.ppf(1 - level / 2, n - 1)
    for effect in (0.3, 1.0, 2.5):
        far = stats.nct.cdf(-bar, n - 1, effect * math.sqrt(n))  # not a number where it is next to nothing
        theirs = stats.nct.sf(bar, n - 1, effect * math.sqrt(n)) + np.nan_to_num(far)
        assert power(effect * 0.02, 0.02, n, level) == pytest.approx(theirs, abs=1e-6)


def test_no_difference_is_found_as_often_as_the_level_says() -> None:
    assert power(0.0, 1.0, 6, 0.05) == pytest.approx(0.05)


def test_detectable_difference_is_the_textbook_one() -> None:
    # The tables of Cohen (1988): 34 pairs find an effect of half a standard deviation in 80 % at the level of 5 %.
    assert units_needed(0.5, 1.0, 0.05) == 34
    assert stats.nct.sf(stats.t.ppf(0.975, 33), 33, detectable(1.0, 34, 0.05) * math.sqrt(34)) == pytest.approx(
        0.8, abs=1e-5
    )
    assert detectable(0.06, 4, 0.05) == pytest.approx(3 * detectable(0.02, 4, 0.05))


def test_a_difference_of_the_detectable_size_is_found_in_four_of_five_simulated_benches() -> None:
    rng = np.random.default_rng(0)
    size = detectable(0.05, 5, 0.05)
    benches = rng.normal(size, 0.05, (20000, 5))
    found = stats.ttest_1samp(benches, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_units_needed_is_the_first_number_that_is_enough() -> None:
    needed = units_needed(0.02, 0.05, 0.0125)
    assert needed is not None
    assert detectable(0.05, needed, 0.0125) <= 0.02 < detectable(0.05, needed - 1, 0.0125)
    assert units_needed(1e-6, 0.05, 0.05) is None


def test_seeds_help_as_far_as_seeds_are_what_varies() -> None:
    # All of the spread is seed noise: 0.06 with 3 seeds is 0.06·√3 with one.
    alone = 0.06 * math.sqrt(3)
    seeds = seeds_needed(0.02, 0.06, 6, 0.05, alone, 3)
    assert seeds is not None
    assert detectable(alone / math.sqrt(seeds), 6, 0.05) <= 0.02 < detectable(alone / math.sqrt(seeds - 1), 6, 0.05)
    # Hardly any of it is: the domains differ among themselves.
    assert seeds_needed(0.02, 0.06, 6, 0.05, 0.01, 3) is None


def test_the_sentence_names_domains_seeds_or_that_no_seed_helps() -> None:
    two = Target(0.02, "2 points")
    assert domains_sentence(two, 0.05, 4, 0.05, 0.001, 3) == (
        "To find a true difference of 2 points in 8 of 10 benches, about 52 domains are needed (here: 4); "
        "no number of seeds helps, because domains are the unit."
    )
    assert stats.nct.sf(stats.t.ppf(0.975, 51), 51, 0.4 * math.sqrt(52)) >= 0.8
    assert stats.nct.sf(stats.t.ppf(0.975, 50), 50, 0.4 * math.sqrt(51)) < 0.8
    assert "seeds for each of these 4 (here: 3)" in domains_sentence(two, 0.03, 4, 0.05, 0.03 * math.sqrt(3), 3)
    assert "with one seed it is not known" in domains_sentence(two, 0.05, 4, 0.05)
    assert domains_sentence(two, 0.001, 4, 0.05) == (
        "A true difference of 2 points would have been found in at least 8 of 10 such benches."
    )


def test_the_target_follows_the_metric() -> None:
    assert target_for("accuracy", 0.7) == Target(0.02, "2 points")
    assert target_for("auroc", 0.7) == Target(0.02, "0.02")
    assert target_for("rmse", 12.0) == Target(pytest.approx(0.6), "0.6 (5 % of the baseline's mean)")
    assert target_for("loss", math.inf) is None


def test_every_difference_within_chance_says_what_could_have_been_found() -> None:
    gains = {"a": 0.03, "b": -0.02, "c": 0.05, "d": 0.00}
    baseline = {(d, s): 0.5 for d in gains for s in range(3)}
    method = {(d, s): 0.5 + gains[d] for d, s in baseline}
    got = paired_difference(method, baseline)
    std = np.std(list(gains.values()), ddof=1)
    assert got.verdict == "no difference beyond chance"
    assert got.detectable == pytest.approx(detectable(std, 4, 0.05))
    assert got.needed.endswith("no number of seeds helps, because domains are the unit.")
    # Three methods with the same differences: none is better, and each is held to a third of the level.
    among = compare(dict.fromkeys("xyz", method), baseline)["x"]
    assert among.detectable == pytest.approx(detectable(std, 4, 0.05 / 3))
    assert among.detectable is not None
    assert among.detectable > got.detectable
