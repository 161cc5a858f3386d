from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import brier_score_loss, confusion_matrix, roc_auc_score

from farfield.protocol.calibration import NotDefined, curve, logistic_intercept, logistic_slope
from farfield.protocol.decision_curve import decision_curve
from farfield.protocol.roc_interval import auroc_interval, macro_auroc_interval
from farfield.protocol.site_figures import classification_site, regression_site

Floats = NDArray[np.float64]


def a_site(n: int = 300, seed: int = 0, slope: float = 0.6, shift: float = 0.5) -> tuple[Floats, NDArray[np.bool_]]:
    """Log odds of a model, and events whose true log odds are `slope` times these plus `shift`."""
    rng = np.random.default_rng(seed)
    log_odds = np.round(rng.normal(-1.0, 1.5, n), 1)  # rounded: ties
    return log_odds, rng.random(n) < 1 / (1 + np.exp(-(shift + slope * log_odds)))


def naive_delong(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """AUROC and its variance, pair by pair."""
    kernel = np.array([[1.0 if x > y else 0.5 if x == y else 0.0 for y in negatives] for x in positives])
    by_positive, by_negative = kernel.mean(axis=1), kernel.mean(axis=0)
    return kernel.mean(), by_positive.var(ddof=1) / len(positives) + by_negative.var(ddof=1) / len(negatives)


def test_auroc_and_its_interval_are_delongs_pair_by_pair() -> None:
    log_odds, events = a_site(120)
    value, low, high = auroc_interval(log_odds[events], log_odds[~events])
    theirs, variance = naive_delong(log_odds[events], log_odds[~events])
    assert value == pytest.approx(theirs)
    assert value == pytest.approx(roc_auc_score(events, log_odds))
    half = 1.959964 * math.sqrt(variance) / (theirs * (1 - theirs))
    centre = math.log(theirs / (1 - theirs))
    assert (low, high) == pytest.approx((1 / (1 + math.exp(half - centre)), 1 / (1 + math.exp(-half - centre))))


def test_the_auroc_interval_covers_the_truth_in_about_95_of_100_sites() -> None:
    # Normal scores one standard deviation apart have an AUROC of Φ(1/√2) = 0.76025.
    rng, covered = np.random.default_rng(1), 0
    for _ in range(1000):
        _, low, high = auroc_interval(rng.normal(1.0, 1.0, 25), rng.normal(0.0, 1.0, 60))
        assert low is not None
        assert high is not None
        covered += low <= 0.76025 <= high
    assert covered / 1000 == pytest.approx(0.95, abs=0.02)


def test_a_perfect_ranking_has_no_interval() -> None:
    assert auroc_interval(np.arange(5.0) + 10, np.arange(5.0)) == (1.0, None, None)
    # One positive among five: above the first, level with the second.
    assert auroc_interval(np.array([1.0]), np.arange(5.0)) == (pytest.approx(0.3), None, None)


def test_the_macro_interval_of_two_classes_is_delongs_up_to_the_small_sample_factor() -> None:
    log_odds, events = a_site(400)
    found = macro_auroc_interval(np.stack([-log_odds, log_odds], axis=1), events.astype(np.int64))
    assert found is not None
    assert found == pytest.approx(auroc_interval(log_odds[events], log_odds[~events]), abs=1e-3)


@pytest.mark.slow
def test_macro_auroc_is_sklearns_and_its_interval_agrees_with_a_bootstrap() -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 3, 300)
    logits = rng.normal(0, 1, (300, 3)) + 1.2 * np.eye(3)[truth]
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = macro_auroc_interval(scores, truth)
    assert found is not None
    value, low, high = found
    assert value == pytest.approx(roc_auc_score(truth, scores, multi_class="ovr"))
    draws = [rng.integers(0, 300, 300) for _ in range(200)]
    again = [roc_auc_score(truth[d], scores[d], multi_class="ovr") for d in draws]
    assert low is not None
    assert high is not None
    assert (high - low) / (2 * 1.96) == pytest.approx(np.std(again), rel=0.2)


def test_slope_and_intercept_are_those_of_an_unpenalised_logistic_regression() -> None:
    log_odds, events = a_site(500)
    theirs = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(log_odds[:, None], events)
    slope = logistic_slope(log_odds, events)
    assert slope.value == pytest.approx(theirs.coef_[0, 0], rel=1e-5)
    # The information of both coefficients, inverted, by hand.
    p = theirs.predict_proba(log_odds[:, None])[:, 1]
    w = p * (1 - p)
    information = np.array([[w.sum(), (w * log_odds).sum()], [(w * log_odds).sum(), (w * log_odds**2).sum()]])
    error = math.sqrt(np.linalg.inv(information)[1, 1])
    assert (slope.low, slope.high) == pytest.approx(
        (slope.value - 1.959964 * error, slope.value + 1.959964 * error), rel=1e-4
    )
    # At the intercept the mean score equals the share of events: that is its equation.
    intercept = logistic_intercept(log_odds, events)
    assert np.mean(1 / (1 + np.exp(-(intercept.value + log_odds)))) == pytest.approx(events.mean())
    assert intercept.low < intercept.value < intercept.high


def test_a_calibrated_model_has_slope_one_and_intercept_zero() -> None:
    log_odds, events = a_site(20000, slope=1.0, shift=0.0)
    slope, intercept = logistic_slope(log_odds, events), logistic_intercept(log_odds, events)
    assert slope.low < 1 < slope.high
    assert intercept.low < 0 < intercept.high


@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e3])
def test_the_slope_scales_with_the_scores_also_where_these_are_extreme(factor: float) -> None:
    log_odds, events = a_site(300)
    assert logistic_slope(factor * log_odds, events).value * factor == pytest.approx(
        logistic_slope(log_odds, events).value
    )


def test_separated_classes_and_equal_scores_have_no_slope() -> None:
    events = np.arange(40) >= 20
    with pytest.raises(NotDefined, match="separate"):
        logistic_slope(np.arange(40.0), events)
    with pytest.raises(NotDefined, match="separate"):
        logistic_slope(-np.arange(40.0), events)
    with pytest.raises(NotDefined, match="same score"):
        logistic_slope(np.full(40, 0.3), events)


def test_the_curve_has_every_row_once_and_keeps_equal_scores_together() -> None:
    log_odds, events = a_site(300)
    bins = curve(log_odds, events.astype(float))
    assert sum(b["rows"] for b in bins) == 300
    assert 2 <= len(bins) <= 10
    assert all(a["high"] < b["low"] for a, b in itertools.pairwise(bins))
    for of in bins:
        inside = (log_odds >= of["low"]) & (log_odds <= of["high"])
        assert of["rows"] == inside.sum() >= 20
        assert of["mean_score"] == pytest.approx(log_odds[inside].mean())
        assert of["share"] == pytest.approx(events[inside].mean())
    assert curve(log_odds[:39], events[:39].astype(float)) == []


def test_net_benefit_by_hand() -> None:
    # At a threshold of 0.2 four rows are acted on: three events and one not. 3/6 - 1/6 · 0.2/0.8.
    got = decision_curve(np.array([0.9, 0.5, 0.2, 0.3, 0.1, 0.05]), np.array([True, True, True, False, False, True]))
    at = got["thresholds"].index(0.2)
    assert got["net_benefit"][at] == pytest.approx(3 / 6 - 1 / 6 * 0.25)
    assert got["treat_all"][at] == pytest.approx(4 / 6 - 2 / 6 * 0.25)
    assert got["net_benefit"][-1] == 0.0
    assert got["thresholds"] == sorted(got["thresholds"])


def test_the_figures_of_a_site_with_two_classes() -> None:
    log_odds, events = a_site(300)
    got = classification_site(log_odds[:, None], events.astype(int), classes=("alive", "died"))
    p = 1 / (1 + np.exp(-log_odds))
    assert (got["rows"], got["events"]) == (300, events.sum())
    assert got["classes"] == {"alive": (~events).sum(), "died": events.sum()}
    assert got["class_order"] == ["alive", "died"]
    assert got["brier"] == pytest.approx(brier_score_loss(events, p), abs=1e-6)
    assert got["auroc"]["value"] == pytest.approx(roc_auc_score(events, p), abs=1e-6)
    assert got["confusion"] == confusion_matrix(events, log_odds > 0).tolist()
    assert (got["too_thin"], got["refused"], got["unseen"]) == (None, {}, {})
    assert got == json.loads(json.dumps(got))
    two_columns = np.stack([np.full(300, 3.0), 3.0 + log_odds], axis=1)
    assert classification_site(two_columns, events.astype(int), ("alive", "died")) == got


def test_nine_events_are_too_thin_for_an_interval_and_calibration() -> None:
    log_odds, _ = a_site(300)
    events = np.zeros(300, dtype=int)
    events[:9] = 1
    got = classification_site(log_odds, events)
    assert got["auroc"] == {
        "value": pytest.approx(roc_auc_score(events, log_odds), abs=1e-6),
        "low": None,
        "high": None,
    }
    assert (got["calibration"], got["decision"]) == (None, None)
    assert got["too_thin"] == "9 events: an interval of the AUROC, calibration and net benefit need 10"
    events[9] = 1
    assert classification_site(log_odds, events)["too_thin"] is None
    few = classification_site(log_odds, (np.arange(300) >= 4).astype(int))
    assert few["too_thin"].startswith("4 rows without the event")


def test_a_site_with_one_class_says_so() -> None:
    got = classification_site(np.arange(30.0), np.zeros(30, dtype=int), ("no", "yes"))
    assert got["too_thin"] == "no row of class 'yes': AUROC, calibration and net benefit need both classes"
    assert got["auroc"] is None
    assert got["confusion"] == [[1, 29], [0, 0]]


def test_a_constant_model_has_no_slope_and_no_auroc_interval() -> None:
    got = classification_site(np.full(60, -1.0), np.arange(60) % 2)
    assert got["auroc"] == {"value": 0.5, "low": None, "high": None}
    assert got["calibration"]["slope"] is None
    assert got["calibration"]["intercept"] == pytest.approx(1.0)
    assert got["refused"]["calibration_slope"] == "all rows have the same score"


def test_classes_that_the_model_cannot_name_are_counted_and_used_for_nothing() -> None:
    log_odds, events = a_site(100)
    labels = np.append(events.astype(int), [-1, -1, 2])
    got = classification_site(np.append(log_odds, [5.0, 5.0, 5.0]), labels)
    without = classification_site(log_odds, events.astype(int))
    assert (got["rows"], got["unseen"]) == (103, {"?": 3})
    assert {**got, "rows": 100, "unseen": {}} == without
    named = classification_site(np.append(log_odds, [5.0] * 3), labels, unseen={"critical": 3})
    assert named["unseen"] == {"critical": 3}


def test_more_than_two_classes_have_a_macro_auroc_and_a_curve_of_the_highest_score() -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 4, 400)
    logits = rng.normal(0, 1, (400, 4)) + np.eye(4)[truth]
    got = classification_site(logits, truth)
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert got["events"] is None
    assert got["auroc"]["value"] == pytest.approx(roc_auc_score(truth, scores, multi_class="ovr"), abs=0.005)
    assert got["auroc"]["low"] < got["auroc"]["value"] < got["auroc"]["high"]
    assert got["brier"] == pytest.approx(np.square(scores - np.eye(4)[truth]).sum(axis=1).mean(), abs=1e-6)
    assert got["confusion"] == confusion_matrix(truth, logits.argmax(axis=1)).tolist()
    right = sum(b["share"] * b["rows"] for b in got["calibration"]["bins"]) / 400
    assert right == pytest.approx((logits.argmax(axis=1) == truth).mean(), abs=1e-5)
    assert got["calibration"]["slope"] is None
    thin = classification_site(logits[:20], np.arange(20) % 4)
    assert thin["auroc"]["low"] is None
    assert thin["refused"]["auroc_interval"] == "a class has fewer than 10 rows"


def test_a_diverged_model_has_no_figures_and_says_why() -> None:
    got = classification_site(np.array([0.0, math.nan, 1.0]), np.array([0, 1, 1]))
    assert got["refused"] == {"all": "the model gave scores that are not finite"}
    assert got["classes"] == {"0": 1, "1": 2}
    assert regression_site([math.inf, 1.0], [1.0, 1.0])["refused"]["all"].endswith("not finite")


def test_a_regression_has_a_line_residuals_and_rmse() -> None:
    rng = np.random.default_rng(4)
    guess = rng.normal(50, 20, 200)
    truth = 10 + 0.7 * guess + rng.normal(0, 5, 200)
    got = regression_site(guess, truth)
    line = LinearRegression().fit(guess[:, None], truth)
    assert got["calibration"]["slope"] == pytest.approx(line.coef_[0], rel=1e-5)
    assert got["calibration"]["intercept"] == pytest.approx(line.intercept_, rel=1e-5)
    assert got["rmse"] == pytest.approx(np.sqrt(np.mean((truth - guess) ** 2)), rel=1e-5)
    assert got["residuals"]["values"][2] == pytest.approx(np.median(truth - guess), rel=1e-5)
    assert len(got["calibration"]["bins"]) == 10
    assert regression_site(np.ones(30), truth[:30])["refused"] == {"calibration": "all rows have the same prediction"}
    assert regression_site(guess[:9], truth[:9])["too_thin"] == "9 rows, and calibration needs 10"
