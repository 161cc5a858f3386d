from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from farfield.protocol.statistics import (
    Summary,
    bootstrap_interval,
    compare,
    holm,
    paired_difference,
    sign_flip_p_value,
    summary,
    wilson_interval,
)

Results = dict[tuple[str, int], float]


def results(table: dict[str, list[float]]) -> Results:
    return {(domain, seed): value for domain, row in table.items() for seed, value in enumerate(row)}


def shifted(baseline: Results, by_domain: dict[str, float]) -> Results:
    return {key: value + by_domain[key[0]] for key, value in baseline.items()}


def flat(domains: str, seeds: int, value: float = 0.5) -> Results:
    return {(domain, seed): value for domain in domains for seed in range(seeds)}


def test_summary_of_three_values_by_hand() -> None:
    got = summary([0.7, 0.8, 0.9])
    assert got.n == 3
    assert got.mean == pytest.approx(0.8)
    assert got.std == pytest.approx(0.1)
    # the 97.5 % quantile of t with two degrees of freedom is 4.302653
    assert got.low == pytest.approx(0.8 - 4.30265272991 * 0.1 / math.sqrt(3))
    assert got.high == pytest.approx(0.8 + 4.30265272991 * 0.1 / math.sqrt(3))


def test_summary_agrees_with_scipy() -> None:
    values = np.random.default_rng(0).normal(size=17)
    got = summary(values)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert got.low == pytest.approx(interval.low)
    assert got.high == pytest.approx(interval.high)


def test_one_value_has_a_mean_and_no_interval() -> None:
    assert summary([0.25]) == Summary(mean=0.25, std=None, n=1, low=None, high=None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert summary([0.5, 0.5, 0.5]) == Summary(mean=0.5, std=0.0, n=3, low=0.5, high=0.5)


def test_a_diverged_run_stays_visible_in_the_summary() -> None:
    assert summary([0.5, math.inf, 0.7]) == Summary(mean=math.inf, std=None, n=3, low=None, high=None)
    assert math.isnan(summary([math.nan, 0.7]).mean)


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        summary([])


def test_three_domains_are_three_observations_however_many_seeds() -> None:
    baseline = results({"art": [0.60, 0.62], "photo": [0.80, 0.84], "sketch": [0.50, 0.50]})
    method = results({"art": [0.63, 0.67], "photo": [0.84, 0.86], "sketch": [0.51, 0.51]})
    got = paired_difference(method, baseline)
    domain_means = [0.04, 0.03, 0.01]
    test = stats.ttest_1samp(domain_means, 0.0)
    assert (got.unit, got.n, got.pairs, got.left_out) == ("domains", 3, 6, 0)
    assert got.mean == pytest.approx(0.08 / 3)
    assert got.p_value == pytest.approx(test.pvalue)
    assert got.low == pytest.approx(test.confidence_interval().low)
    assert got.high == pytest.approx(test.confidence_interval().high)
    assert got.p_sign_flip == 2 / 8
    assert got.verdict == "no difference beyond chance"


def test_more_seeds_of_the_same_domains_do_not_buy_significance() -> None:
    gains = {"a": 0.05, "b": 0.01, "c": 0.04}
    few = paired_difference(shifted(flat("abc", 1), gains), flat("abc", 1))
    many = paired_difference(shifted(flat("abc", 50), gains), flat("abc", 50))
    assert many.p_value == pytest.approx(few.p_value)
    assert (many.verdict, few.verdict) == ("no difference beyond chance", "no difference beyond chance")


def test_a_domain_with_more_seeds_does_not_weigh_more() -> None:
    baseline = results({"a": [0.5], "b": [0.5], "c": [0.5, 0.5, 0.5]})
    method = results({"a": [0.6], "b": [0.6], "c": [0.5, 0.5, 0.5]})
    assert paired_difference(method, baseline).mean == pytest.approx(0.2 / 3)


@pytest.mark.parametrize("domains", ["a", "ab"])
def test_fewer_than_three_domains_are_compared_over_pairs(domains: str) -> None:
    rng = np.random.default_rng(1)
    baseline = {key: rng.normal() for key in flat(domains, 5)}
    method = {key: value + rng.normal(0.5, 0.1) for key, value in baseline.items()}
    test = stats.ttest_rel([method[k] for k in baseline], list(baseline.values()))
    got = paired_difference(method, baseline)
    assert (got.unit, got.n) == ("pairs", 5 * len(domains))
    assert got.p_value == pytest.approx(test.pvalue)
    assert got.low == pytest.approx(test.confidence_interval().low)
    assert got.high == pytest.approx(test.confidence_interval().high)
    assert got.verdict == "better"


def test_the_verdict_turns_with_the_direction_and_the_sign_does_not() -> None:
    baseline = flat("abcd", 2)
    method = shifted(baseline, {"a": 0.10, "b": 0.11, "c": 0.09, "d": 0.10})
    assert paired_difference(method, baseline).verdict == "better"
    as_loss = paired_difference(method, baseline, higher_is_better=False)
    assert as_loss.verdict == "worse"
    assert as_loss.mean == pytest.approx(0.1)
    assert paired_difference(baseline, method).verdict == "worse"
    assert paired_difference(baseline, method, higher_is_better=False).verdict == "better"


def test_interval_and_p_value_never_disagree() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        baseline = {key: rng.normal() for key in flat("abcde", 2)}
        got = paired_difference({k: v + rng.normal(0.6, 0.6) for k, v in baseline.items()}, baseline)
        assert got.low is not None
        assert got.high is not None
        assert got.p_value is not None
        assert (got.low > 0 or got.high < 0) == (got.p_value < 0.05) == (got.verdict in ("better", "worse"))


def test_identical_results_are_no_difference() -> None:
    baseline = results({"a": [0.1, 0.7], "b": [0.3, 0.2], "c": [0.9, 0.4]})
    got = paired_difference(baseline, baseline)
    assert (got.mean, got.low, got.high, got.p_value, got.p_sign_flip) == (0.0, 0.0, 0.0, 1.0, 1.0)
    assert got.verdict == "no difference beyond chance"


def test_rounding_noise_is_not_evidence() -> None:
    baseline = results({"a": [0.3], "b": [0.6], "c": [0.9], "d": [0.7]})
    method = {key: float(np.nextafter(value, 1.0)) for key, value in baseline.items()}
    got = paired_difference(method, baseline)
    assert (got.mean, got.p_value, got.verdict) == (0.0, 1.0, "no difference beyond chance")


def test_differences_without_spread_are_not_called_certain() -> None:
    baseline = results({"a": [0.7], "b": [0.6], "c": [0.2]})
    got = paired_difference(shifted(baseline, {"a": 0.1, "b": 0.1, "c": 0.1}), baseline)
    assert (got.low, got.high, got.p_value) == (None, None, 0.25)
    assert got.verdict == "no difference beyond chance"


def test_one_pair_is_too_few_to_say() -> None:
    got = paired_difference({("a", 0): 0.9}, {("a", 0): 0.1})
    assert (got.n, got.unit) == (1, "pairs")
    assert got.mean == pytest.approx(0.8)
    assert (got.low, got.high, got.p_value, got.p_sign_flip) == (None, None, None, 1.0)
    assert got.verdict == "too few to say"


def test_two_pairs_have_an_interval_but_no_verdict() -> None:
    baseline = flat("ab", 1)
    got = paired_difference(shifted(baseline, {"a": 0.2000, "b": 0.2001}), baseline)
    assert got.p_value is not None
    assert got.p_value < 0.05
    assert got.verdict == "too few to say"


def test_only_shared_keys_are_compared_and_the_rest_is_counted() -> None:
    baseline = results({"a": [0.5, 0.5], "b": [0.5], "z": [0.1]})
    method = results({"a": [0.6, 0.8, 0.99], "b": [0.7], "c": [0.0]})
    got = paired_difference(method, baseline)
    assert (got.pairs, got.left_out, got.n, got.unit) == (3, 3, 3, "pairs")
    assert got.mean == pytest.approx((0.1 + 0.3 + 0.2) / 3)


def test_nothing_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="share no"):
        paired_difference({("a", 0): 0.5}, {("a", 1): 0.5})


def test_a_diverged_run_is_not_dropped_from_the_difference() -> None:
    baseline = flat("abc", 1)
    got = paired_difference({**baseline, ("b", 0): math.inf}, baseline, higher_is_better=False)
    assert got.mean == math.inf
    assert (got.low, got.p_value, got.p_sign_flip, got.verdict) == (None, None, None, "too few to say")
    both_diverged = paired_difference({**baseline, ("b", 0): math.inf}, {**baseline, ("b", 0): math.inf})
    assert math.isnan(both_diverged.mean)


def test_order_of_the_results_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    baseline = {key: rng.normal() for key in flat("abcd", 3)}
    method = {key: rng.normal() for key in flat("abcd", 3)}
    assert paired_difference(method, baseline) == paired_difference(
        dict(reversed(method.items())), dict(reversed(baseline.items()))
    )


def test_sign_flip_by_hand() -> None:
    # signs of (3, 1): sums 4, 2, -2, -4; half of them reach |4|.
    assert sign_flip_p_value([3.0, 1.0]) == 0.5
    # (3, 1, -1): |sum| is 3; +++ 3, ++- 5, +-+ 1, +-- 3 and their mirrors: six of eight.
    assert sign_flip_p_value([3.0, 1.0, -1.0]) == 0.75
    assert sign_flip_p_value([1.0] * 6) == 2 / 64
    assert sign_flip_p_value([0.0, 0.0]) == 1.0


def test_sums_that_tie_in_exact_arithmetic_tie_here() -> None:
    # 0.1 + 0.2 - 0.3 is 5.6e-17 in floats; all patterns reach a mean of zero.
    assert sign_flip_p_value([0.1, 0.2, -0.3]) == 1.0
    # In tenths (5, -2, 3, 2, -5): 28 of the 32 patterns reach 3; compared without tolerance only 24 do.
    assert sign_flip_p_value([0.5, -0.2, 0.3, 0.2, -0.5]) == 28 / 32


@pytest.mark.parametrize("n", [4, 9, 14])
def test_exact_sign_flip_agrees_with_scipy(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.4, 1.0, n)
    theirs = stats.permutation_test(
        (differences, np.zeros(n)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert sign_flip_p_value(differences) == pytest.approx(theirs.pvalue)


def test_exact_sign_flip_agrees_with_enumeration() -> None:
    differences = [0.3, -0.1, 0.25, 0.4, 0.05]
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product((1, -1), repeat=5)]
    assert sign_flip_p_value(differences) == np.mean(np.array(sums) >= abs(sum(differences)) - 1e-12)


def test_monte_carlo_sign_flip_is_seeded_near_the_t_test_and_never_zero() -> None:
    differences = np.random.default_rng(4).normal(0.3, 1.0, 60)
    once, again = sign_flip_p_value(differences), sign_flip_p_value(differences)
    assert once == again
    assert once == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue, abs=0.01)
    assert sign_flip_p_value(np.ones(40)) == 1 / 2**14


@pytest.mark.parametrize("differences", [[], [1.0, math.nan]])
def test_sign_flip_refuses_what_it_cannot_rank(differences: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        sign_flip_p_value(differences)


def test_holm_by_hand() -> None:
    got = holm({"d": 0.01, "a": 0.04, "c": 0.03, "b": 0.005})
    # sorted .005 .01 .03 .04, times 4 3 2 1 = .02 .03 .06 .04, and never falling
    assert list(got) == ["d", "a", "c", "b"]
    assert got == pytest.approx({"b": 0.02, "d": 0.03, "c": 0.06, "a": 0.06})


def test_holm_limits() -> None:
    assert holm({}) == {}
    assert holm({"a": 0.03}) == {"a": 0.03}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.01, "b": 0.01}) == {"a": 0.02, "b": 0.02}
    with pytest.raises(ValueError, match="'a' is nan"):
        holm({"a": math.nan})


def test_comparing_several_methods_corrects_their_verdicts() -> None:
    baseline = flat("abcd", 1)
    weak = shifted(baseline, {"a": 0.02, "b": 0.05, "c": 0.06, "d": 0.03})
    strong = shifted(baseline, {"a": 0.100, "b": 0.101, "c": 0.099, "d": 0.100})
    alone = paired_difference(weak, baseline)
    assert alone.verdict == "better"
    assert alone.p_holm is None
    assert alone.p_value is not None

    got = compare({f"weak{i}": weak for i in range(4)} | {"strong": strong}, baseline)
    assert got["weak0"].p_value == alone.p_value
    assert got["weak0"].p_holm == pytest.approx(4 * alone.p_value)
    assert got["weak0"].verdict == "no difference beyond chance"
    assert (got["weak0"].low, got["weak0"].high) == (alone.low, alone.high)
    assert got["strong"].verdict == "better"
    assert compare({"weak": weak}, baseline)["weak"].verdict == "better"


def test_a_method_without_p_value_does_not_count_in_the_correction() -> None:
    baseline = flat("abcd", 1)
    good = shifted(baseline, {"a": 0.100, "b": 0.101, "c": 0.099, "d": 0.100})
    got = compare({"good": good, "barely run": {("a", 0): 0.9}}, baseline)
    assert got["good"].p_holm == got["good"].p_value
    assert (got["barely run"].p_holm, got["barely run"].verdict) == (None, "too few to say")


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
