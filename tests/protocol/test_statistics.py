from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from farfield.protocol.statistics import (
    Summary,
    compare,
    compare_on_these_domains,
    holm,
    holm_levels,
    on_these_domains,
    paired_difference,
    sign_flip_p_value,
    summary,
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


def test_two_values_have_a_spread_and_no_interval() -> None:
    # The t-interval of 0.2 and 0.9 would be 0.55 ± 4.4.
    got = summary([0.2, 0.9])
    assert (got.n, got.low, got.high) == (2, None, None)
    assert got.std == pytest.approx(0.7 / math.sqrt(2))


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
def test_fewer_than_three_domains_say_nothing_about_a_new_one(domains: str) -> None:
    rng = np.random.default_rng(1)
    baseline = {key: rng.normal() for key in flat(domains, 5)}
    method = {key: value + rng.normal(0.5, 0.1) for key, value in baseline.items()}
    got = paired_difference(method, baseline)
    assert (got.unit, got.n, got.pairs) == ("domains", len(domains), 5 * len(domains))
    assert got.mean == pytest.approx(np.mean([method[k] - baseline[k] for k in baseline]))
    assert (got.low, got.high, got.alone, got.p_value, got.detectable) == (None, None, None, None, None)
    assert got.verdict == "too few to say"
    assert got.needed == (
        f"Too few domains to say for a new one; 3 held-out domains are needed (here: {len(domains)})."
    )


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
    assert (got.n, got.unit) == (1, "domains")
    assert got.mean == pytest.approx(0.8)
    assert (got.low, got.high, got.p_value, got.p_sign_flip) == (None, None, None, 1.0)
    assert got.verdict == "too few to say"


def test_only_shared_keys_are_compared_and_the_rest_is_counted() -> None:
    baseline = results({"a": [0.5, 0.5], "b": [0.5], "z": [0.1]})
    method = results({"a": [0.6, 0.8, 0.99], "b": [0.7], "c": [0.0]})
    got = paired_difference(method, baseline)
    assert (got.pairs, got.left_out, got.n, got.unit) == (3, 3, 2, "domains")
    assert got.mean == pytest.approx(((0.1 + 0.3) / 2 + 0.2) / 2)


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
    assert got["weak0"].alone == (alone.low, alone.high)
    assert got["strong"].verdict == "better"
    assert compare({"weak": weak}, baseline)["weak"].verdict == "better"


def test_a_method_without_p_value_does_not_count_in_the_correction() -> None:
    baseline = flat("abcd", 1)
    good = shifted(baseline, {"a": 0.100, "b": 0.101, "c": 0.099, "d": 0.100})
    got = compare({"good": good, "barely run": {("a", 0): 0.9}}, baseline)
    assert got["good"].p_holm == got["good"].p_value
    assert (got["barely run"].p_holm, got["barely run"].verdict) == (None, "too few to say")


def test_holm_levels_by_hand() -> None:
    # Sorted .001 .010 .030 .040 against .05/4 .05/3 .05/2: the third fails, and the fourth is held to the same level.
    got = holm_levels({"d": 0.010, "a": 0.040, "c": 0.030, "b": 0.001})
    assert got == pytest.approx({"d": 0.05 / 3, "a": 0.05 / 2, "c": 0.05 / 2, "b": 0.05 / 4})
    assert list(got) == ["d", "a", "c", "b"]
    assert holm_levels({"a": 0.2}) == {"a": 0.05}
    assert holm_levels({"a": 0.001, "b": 0.002}) == {"a": 0.025, "b": 0.05}


def test_corrected_intervals_agree_with_the_verdicts_and_with_scipy() -> None:
    rng = np.random.default_rng(5)
    contradicted_alone = 0
    for _ in range(100):
        baseline = {key: rng.normal() for key in flat("abcdef", 2)}
        methods = {f"m{i}": {k: v + rng.normal(0.25 * i, 0.6) for k, v in baseline.items()} for i in range(5)}
        for name, got in compare(methods, baseline).items():
            assert got.low is not None
            assert got.high is not None
            assert got.alone is not None
            decided = got.verdict in ("better", "worse")
            assert (got.low > 0 or got.high < 0) == decided
            contradicted_alone += (got.alone[0] > 0 or got.alone[1] < 0) != decided
            by_domain = [np.mean([methods[name][d, s] - baseline[d, s] for s in range(2)]) for d in "abcdef"]
            theirs = stats.ttest_1samp(by_domain, 0.0).confidence_interval(1 - got.level)
            assert (got.low, got.high) == pytest.approx((theirs.low, theirs.high))
    assert contradicted_alone > 10  # what the correction is for


def test_on_these_domains_pairs_the_seeds_means() -> None:
    rng = np.random.default_rng(6)
    baseline = {key: rng.normal() for key in flat("ab", 6)}
    method = {key: value + rng.normal(0.5, 0.1) for key, value in baseline.items()}
    per_seed = [np.mean([method[d, s] - baseline[d, s] for d in "ab"]) for s in range(6)]
    test = stats.ttest_1samp(per_seed, 0.0)
    got = on_these_domains(method, baseline)
    assert (got.unit, got.n, got.pairs, got.left_out, got.verdict) == ("seeds", 6, 12, 0, "better")
    assert got.p_value == pytest.approx(test.pvalue)
    assert (got.low, got.high) == pytest.approx(tuple(test.confidence_interval()))


def test_on_these_domains_needs_five_seeds_with_all_domains() -> None:
    baseline = flat("abc", 5)
    method = {key: 0.6 + 0.01 * key[1] for key in baseline if key != ("b", 4)}
    got = on_these_domains(method, baseline)
    assert (got.n, got.pairs, got.left_out, got.verdict) == (4, 12, 3, "too few to say")
    assert got.needed == "Too few seeds to say; 5 are needed (here: 4)."
    assert (got.low, got.p_value) == (None, None)


def test_a_real_gain_on_these_domains_need_not_hold_for_a_new_one() -> None:
    # Better by 0.3 on one of three domains and equal elsewhere: sure for reruns, unknown for a new domain.
    rng = np.random.default_rng(7)
    baseline = flat("abc", 6)
    method = {key: 0.5 + (0.3 if key[0] == "a" else 0.0) + rng.normal(0, 0.01) for key in baseline}
    assert paired_difference(method, baseline).verdict == "no difference beyond chance"
    assert on_these_domains(method, baseline).verdict == "better"


def test_no_seed_with_all_domains_is_too_few_and_not_an_error() -> None:
    got = on_these_domains({("a", 0): 0.5, ("b", 1): 0.6}, {("a", 0): 0.4, ("b", 1): 0.4})
    assert (got.n, got.verdict) == (0, "too few to say")


def test_comparing_on_these_domains_is_corrected_too() -> None:
    rng = np.random.default_rng(8)
    baseline = {key: rng.normal() for key in flat("ab", 5)}
    methods = {f"m{i}": {k: v + rng.normal(0.1, 0.3) for k, v in baseline.items()} for i in range(3)}
    got = compare_on_these_domains(methods, baseline)
    alone = {name: on_these_domains(values, baseline).p_value for name, values in methods.items()}
    assert {name: d.p_holm for name, d in got.items()} == pytest.approx(holm({k: v or 0.0 for k, v in alone.items()}))


def test_a_decided_difference_needs_nothing_more_and_a_diverged_one_says_why() -> None:
    baseline = flat("abcd", 1)
    better = shifted(baseline, {"a": 0.100, "b": 0.101, "c": 0.099, "d": 0.100})
    assert paired_difference(better, baseline).needed == ""
    diverged = paired_difference({**baseline, ("a", 0): math.inf}, baseline)
    assert diverged.needed == "A run diverged, so nothing can be compared."
    same = paired_difference(baseline, baseline)
    assert same.needed.startswith("The difference is zero on every one of the 4 domains")
