from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from farfield.protocol.new_site import NewSiteEstimate, Refusal, new_site_estimate

HOSPITALS = {"cleveland": 0.77, "hungary": 0.80, "swiss": 0.60, "longbeach": 0.71}
ROWS = {"cleveland": 303, "hungary": 294, "swiss": 123, "longbeach": 200}


def estimate(values: dict[str, float], rows: dict[str, int] | None, metric: str) -> NewSiteEstimate:
    got = new_site_estimate(values, rows, metric)
    assert isinstance(got, NewSiteEstimate)
    return got


def test_four_hospitals_by_hand() -> None:
    got = new_site_estimate(HOSPITALS, ROWS, "accuracy", noun="hospital")
    assert isinstance(got, NewSiteEstimate)
    shrunk = [(HOSPITALS[d] * ROWS[d] + 0.5) / (ROWS[d] + 1) for d in HOSPITALS]
    logits = [math.log(x / (1 - x)) for x in shrunk]
    # t with three degrees of freedom: 3.182446; s·√(1 + 1/4)
    half = 3.182446305 * np.std(logits, ddof=1) * math.sqrt(1.25)
    assert got.low == pytest.approx(1 / (1 + math.exp(-(np.mean(logits) - half))))
    assert got.high == pytest.approx(1 / (1 + math.exp(-(np.mean(logits) + half))))
    assert got.mean == pytest.approx(0.72)
    assert got.between_std == pytest.approx(np.std(list(HOSPITALS.values()), ddof=1))
    interval = stats.ttest_1samp(list(HOSPITALS.values()), 0.0).confidence_interval()
    assert (got.mean_low, got.mean_high) == pytest.approx(tuple(interval))
    assert (got.worst_domain, got.worst, got.domains, got.scale) == ("swiss", 0.60, 4, "logit")
    assert got.sentence == (
        "4 hospitals: 72 % accuracy on average; a new one is likely to lie between 36 and 92 % (an interval that holds "
        "about 90 to 95 % of the time); 4 are too few to promise more."
    )
    assert got.to_json()["coverage"] == "about 90 to 95 %"


def test_a_perfect_site_does_not_lie_at_infinity_where_its_rows_are_known() -> None:
    values = {"a": 1.0, "b": 0.9, "c": 0.95, "d": 0.97}
    got = estimate(values, dict.fromkeys(values, 50), "accuracy")
    assert 0 < got.low < 0.9 < got.high < 1
    assert got.mean_high <= 1
    refused = new_site_estimate(values, None, "accuracy")
    assert isinstance(refused, Refusal)
    assert "'a' is 1, and a value of 0 or 1 has no place on the logit scale; give the rows" in refused.sentence


def test_errors_are_estimated_on_the_log_scale_and_scale_with_their_unit() -> None:
    values = {"a": 2.0, "b": 4.0, "c": 8.0, "d": 4.0}
    got = estimate(values, None, "mae")
    logs = np.log(list(values.values()))
    half = 3.182446305 * logs.std(ddof=1) * math.sqrt(1.25)
    assert (got.low, got.high) == pytest.approx((math.exp(logs.mean() - half), math.exp(logs.mean() + half)))
    assert got.worst_domain == "c"
    tenfold = estimate({name: 10 * value for name, value in values.items()}, None, "mae")
    assert (tenfold.low, tenfold.high) == pytest.approx((10 * got.low, 10 * got.high))
    assert "mean absolute error on average" in got.sentence
    zero = new_site_estimate({**values, "a": 0.0}, None, "loss")
    assert isinstance(zero, Refusal)
    assert "a value of 0 has no place on the log scale" in zero.sentence


def test_r2_is_estimated_by_the_error_relative_to_the_variance() -> None:
    values = {"a": 0.8, "b": 0.5, "c": -0.2, "d": 0.6}
    got = estimate(values, None, "r2")
    rest = np.log([1 - value for value in values.values()])
    half = 3.182446305 * rest.std(ddof=1) * math.sqrt(1.25)
    assert (got.low, got.high) == pytest.approx((1 - math.exp(rest.mean() + half), 1 - math.exp(rest.mean() - half)))
    assert got.low < got.mean < got.high < 1
    assert got.worst_domain == "c"


def test_three_domains_are_refused_with_what_is_needed() -> None:
    got = new_site_estimate({"a": 0.7, "b": 0.8, "c": 0.6}, None, "accuracy", noun="hospital")
    assert got == Refusal(
        "3 held-out hospitals are too few to say how a new one will do: 4 are needed to see how much they differ; "
        "hold out more of them, or split the data by a finer one."
    )
    assert got.to_json() == {"refused": got.sentence}


@pytest.mark.parametrize(
    ("values", "metric", "why"),
    [
        ({"a": 0.7, "b": math.nan, "c": 0.6, "d": 0.5}, "accuracy", "on 'b' is not a finite number"),
        ({"a": 0.7, "b": 1.2, "c": 0.6, "d": 0.5}, "auroc", "AUROC 1.2 on 'b' is not a share"),
        ({"a": 0.7, "b": 0.2, "c": 0.6, "d": 0.5}, "entropy", "the scale of 'entropy' is not known"),
        ({"a": 1.0, "b": 0.2, "c": 0.6, "d": 0.5}, "r2", "a value of 1 has no place"),
    ],
)
def test_what_has_no_estimate_is_refused_with_the_reason(values: dict[str, float], metric: str, why: str) -> None:
    got = new_site_estimate(values, None, metric)
    assert isinstance(got, Refusal)
    assert why in got.sentence


def test_equal_sites_promise_the_same_for_a_new_one() -> None:
    got = estimate(dict.fromkeys("abcde", 0.75), None, "accuracy")
    assert (got.low, got.high) == pytest.approx((0.75, 0.75))


def test_the_interval_covers_a_new_site_as_often_as_it_says_and_that_of_the_mean_does_not() -> None:
    rng = np.random.default_rng(0)
    covered = covered_by_mean = 0
    for _ in range(2000):
        sites = 1 / (1 + np.exp(-rng.normal(1.0, 0.6, 7)))
        got = estimate({str(i): value for i, value in enumerate(sites[:6])}, None, "accuracy")
        covered += got.low <= sites[6] <= got.high
        covered_by_mean += got.mean_low <= sites[6] <= got.mean_high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
    assert covered_by_mean / 2000 < 0.75


def test_the_interval_holds_its_own_mean_where_every_site_is_perfect() -> None:
    found = new_site_estimate(dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", 100), "accuracy")
    assert isinstance(found, NewSiteEstimate)
    assert found.low < found.mean == found.high == 1.0
