from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

from farfield.math import auroc
from farfield.protocol import metrics as module
from farfield.protocol.metrics import (
    HIGHER_IS_BETTER,
    classification_metrics,
    fairness,
    logit_metrics,
    regression_metrics,
    worst,
)


def sklearn_says(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The same metrics one class at a time by scikit-learn, for a table with K ≥ 2 columns."""
    classes = scores.shape[1]
    present = np.unique(labels)
    guess = scores.argmax(axis=1)
    one_hot = np.eye(classes)[labels]
    said = {
        "accuracy": oracle.accuracy_score(labels, guess),
        "balanced_accuracy": np.mean([(guess[labels == k] == k).mean() for k in present]),
        "balanced_loss": np.mean([-np.log(scores[labels == k, k]).mean() for k in present]),
        "macro_f1": oracle.f1_score(labels, guess, labels=present, average="macro", zero_division=0),
        "loss": oracle.log_loss(labels, scores, labels=np.arange(classes)),
        "brier": oracle.brier_score_loss(labels, scores, labels=np.arange(classes)),
    }
    ranked = [k for k in ([1] if classes == 2 else range(classes)) if 0 < (labels == k).sum() < len(labels)]
    if ranked:
        said["auroc"] = np.mean([oracle.roc_auc_score(one_hot[:, k], scores[:, k]) for k in ranked])
        said["average_precision"] = np.mean(
            [oracle.average_precision_score(one_hot[:, k], scores[:, k]) for k in ranked]
        )
    return said


def random_problem(n: int, classes: int, seed: int, grid: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Scores that carry some signal; on a `grid` they are multiples of 1/grid, so that many tie."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    if grid is None:
        logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
        scores = np.exp(logits)
        return scores / scores.sum(axis=1, keepdims=True), labels
    return rng.multinomial(grid, np.full(classes, 1 / classes), size=n) / grid, labels


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("grid", [None, 4, 20])
@pytest.mark.parametrize("n", [7, 300])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_metrics_agree_with_scikit_learn_with_and_without_ties(
    classes: int, grid: int | None, n: int, seed: int
) -> None:
    scores, labels = random_problem(n, classes, seed, grid)
    if grid is not None:
        # scikit-learn floors probabilities elsewhere than we do; away from zero there is only one log loss.
        scores = 0.9 * scores + 0.1 / classes
    ours = classification_metrics(scores, labels)
    theirs = sklearn_says(scores, labels)
    assert set(ours) == set(theirs) | {"ece"}
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("occurring", [[0, 2, 5], [4, 5], [1, 2, 3, 4, 5]])
def test_classes_that_do_not_occur_are_not_averaged_in(occurring: list[int]) -> None:
    scores, labels = random_problem(200, 6, seed=3)
    labels = np.array(occurring)[labels % len(occurring)]
    ours = classification_metrics(scores, labels)
    theirs = sklearn_says(scores, labels)
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(("classes", "label"), [(2, 0), (2, 1), (5, 3)])
def test_labels_of_one_class_leave_the_ranking_metrics_out(classes: int, label: int) -> None:
    scores, labels = random_problem(50, classes, seed=4)
    labels = np.full_like(labels, label)
    ours = classification_metrics(scores, labels)
    theirs = sklearn_says(scores, labels)
    assert set(ours) == {"accuracy", "balanced_accuracy", "macro_f1", "loss", "balanced_loss", "ece", "brier"}
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)


def test_one_column_is_the_probability_of_class_one() -> None:
    scores, labels = random_problem(120, 2, seed=5)
    both = classification_metrics(scores, labels)
    assert classification_metrics(scores[:, 1:], labels) == pytest.approx(both, abs=1e-12)
    assert classification_metrics(scores[:, 1], labels) == pytest.approx(both, abs=1e-12)


def test_metrics_of_a_case_worked_by_hand() -> None:
    scores = [[0.1, 0.9], [0.4, 0.6], [0.7, 0.3], [0.4, 0.6]]
    got = classification_metrics(scores, [1, 0, 0, 1])
    assert got["accuracy"] == 0.75
    # class 0: one of one guess right, one of two found, 2/3; class 1: two of three right, both found, 4/5.
    assert got["macro_f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert got["loss"] == pytest.approx(-math.log(0.9 * 0.4 * 0.7 * 0.6) / 4)
    # of four (positive, negative) comparisons three are won and one is tied.
    assert got["auroc"] == 0.875
    # thresholds 0.9 (precision 1, recall 1/2) and 0.6 (precision 2/3, recall 1).
    assert got["average_precision"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert got["brier"] == pytest.approx((0.01 + 0.36 + 0.09 + 0.16) / 4)
    # bins: {0.9 right}, {0.6 wrong, 0.6 right}, {0.7 right}.
    assert got["ece"] == pytest.approx((0.1 + 0.2 + 0.3) / 4)


def test_ece_bins_are_closed_on_the_right() -> None:
    # 0.8 = 12/15 closes a bin that 0.79 is in too, so their errors (+0.2, -0.79) add up before the absolute value.
    same = classification_metrics([[0.8, 0.2], [0.79, 0.21]], [0, 1])
    assert same["ece"] == pytest.approx(abs(0.2 - 0.79) / 2)
    apart = classification_metrics([[0.81, 0.19], [0.79, 0.21]], [0, 1])
    assert apart["ece"] == pytest.approx((0.19 + 0.79) / 2)


def test_a_perfect_model_has_perfect_metrics() -> None:
    labels = np.array([0, 1, 2, 1, 0])
    got = classification_metrics(np.eye(3)[labels], labels)
    assert got == {
        "accuracy": 1.0,
        "balanced_accuracy": 1.0,
        "macro_f1": 1.0,
        "loss": 0.0,
        "balanced_loss": 0.0,
        "auroc": 1.0,
        "average_precision": 1.0,
        "ece": 0.0,
        "brier": 0.0,
    }


def test_all_scores_equal_is_chance() -> None:
    got = classification_metrics(np.full((8, 2), 0.5), [0, 1, 0, 1, 0, 1, 1, 1])
    assert got["auroc"] == 0.5
    assert got["average_precision"] == 5 / 8
    assert got["accuracy"] == 3 / 8  # equal scores go to the lowest class


def test_a_probability_of_zero_costs_a_finite_loss() -> None:
    got = classification_metrics([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1, 1])
    assert got["loss"] == pytest.approx(-math.log(np.finfo(np.float32).tiny) / 2)


def test_small_float32_probabilities_keep_their_loss() -> None:
    scores = np.array([[1.0, 1e-30, 0.0]], dtype=np.float32)
    assert classification_metrics(scores, [1])["loss"] == pytest.approx(30 * math.log(10), rel=1e-6)


def test_a_float32_sigmoid_that_rounded_to_one_costs_what_float32_can_tell() -> None:
    saturated = np.array([[1.0]], dtype=np.float32)
    assert classification_metrics(saturated, [0])["loss"] == pytest.approx(24 * math.log(2))


def test_a_diverged_row_counts_as_wrong_and_no_metric_is_nan() -> None:
    scores = np.array([[np.nan, np.nan, np.nan], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [np.inf, 0.0, 0.0]])
    got = classification_metrics(scores, [0, 0, 1, 0])
    assert set(got) == {"accuracy", "balanced_accuracy", "macro_f1", "loss", "balanced_loss"}
    assert got["accuracy"] == 0.5
    assert got["macro_f1"] == pytest.approx((2 * 1 / (1 + 3) + 1) / 2)
    assert got["loss"] == pytest.approx((-2 * math.log(np.finfo(np.float32).tiny) - 2 * math.log(0.8)) / 4)


def test_a_fully_diverged_model_has_accuracy_zero() -> None:
    got = classification_metrics(np.full((3, 4), np.nan), [0, 0, 0])
    assert got["accuracy"] == 0.0
    assert got["macro_f1"] == 0.0
    assert math.isfinite(got["loss"])


def test_ranking_in_blocks_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = random_problem(60, 7, seed=6, grid=10)
    at_once = classification_metrics(scores, labels)
    monkeypatch.setattr(module, "_BLOCK", 130)
    assert classification_metrics(scores, labels) == at_once


def test_inputs_are_left_untouched() -> None:
    scores, labels = random_problem(20, 3, seed=7)
    before = scores.copy(), labels.copy()
    classification_metrics(scores, labels)
    np.testing.assert_array_equal(scores, before[0])
    np.testing.assert_array_equal(labels, before[1])


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([[2.0, -1.0]], [0], "probabilities"),
        ([[0.9, 0.9]], [0], "probabilities"),
        ([[np.nan, np.nan], [2.0, -1.0]], [0, 0], "probabilities"),
        ([[0.5, 0.5]], [2], "from 0 to 1, not"),
        ([[0.5, 0.5]], [-1], "class numbers"),
        ([[0.5, 0.5]], [0.5], "class numbers"),
        ([[0.5, 0.5]], [0, 1], "1 rows of scores do not match 2 labels"),
        (np.empty((0, 3)), [], "non-empty"),
    ],
)
def test_wrong_classification_inputs_are_refused(scores: object, labels: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classification_metrics(scores, labels)  # type: ignore[arg-type]


def test_regression_metrics_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(8)
    targets = rng.normal(size=100)
    predictions = targets + rng.normal(scale=0.5, size=100)
    got = regression_metrics(predictions, targets)
    assert got == pytest.approx(
        {
            "loss": oracle.mean_squared_error(targets, predictions),
            "rmse": oracle.root_mean_squared_error(targets, predictions),
            "mae": oracle.mean_absolute_error(targets, predictions),
            "r2": oracle.r2_score(targets, predictions),
        },
        abs=1e-12,
    )


def test_a_column_of_predictions_does_not_broadcast_against_targets() -> None:
    got = regression_metrics([[1.0], [2.0], [4.0]], [1.0, 2.0, 3.0])
    assert got == pytest.approx({"loss": 1 / 3, "rmse": 3**-0.5, "mae": 1 / 3, "r2": 0.5})


@pytest.mark.parametrize("targets", [[0.1] * 3, [2.0]])
def test_constant_targets_have_no_r2(targets: list[float]) -> None:
    got = regression_metrics([t + 1 for t in targets], targets)
    assert got == pytest.approx({"loss": 1.0, "rmse": 1.0, "mae": 1.0})


def test_diverged_predictions_have_infinite_loss() -> None:
    assert regression_metrics([1.0, np.nan], [1.0, 2.0]) == {"loss": math.inf, "rmse": math.inf, "mae": math.inf}


@pytest.mark.parametrize(
    ("predictions", "targets", "message"),
    [
        ([1.0], [1.0, 2.0], "1 predictions do not match 2 targets"),
        ([], [], "predictions are empty"),
        ([[1.0, 2.0]], [[1.0, 2.0]], "one number each"),
        ([1.0], [np.nan], "targets hold a value that is not finite"),
    ],
)
def test_wrong_regression_inputs_are_refused(predictions: list[float], targets: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regression_metrics(predictions, targets)


def test_fairness_of_fedilc_table_five() -> None:
    # golden.json, fedilc_fairness
    got = fairness([0.443, 0.434, 0.428, 0.42, 0.44, 0.411, 0.413, 0.367, 0.371])
    assert got["variance"] * 1000 == pytest.approx(0.6907654320987655, rel=1e-9)
    assert got["entropy"] * 10 == pytest.approx(21.95172757077661, rel=1e-9)


def test_fairness_limits() -> None:
    assert fairness([0.5, 0.5, 0.5]) == pytest.approx({"variance": 0.0, "entropy": math.log(3)})
    assert fairness([0.0, 0.0]) == pytest.approx({"variance": 0.0, "entropy": math.log(2)})
    assert fairness([1.0, 0.0]) == pytest.approx({"variance": 0.25, "entropy": 0.0})
    assert fairness({"a": 0.25, "b": 0.75}.values())["variance"] == pytest.approx(0.0625)
    with pytest.raises(ValueError, match="empty"):
        fairness([])
    with pytest.raises(ValueError, match="from 0 up"):
        fairness([0.5, -0.1])
    with pytest.raises(ValueError, match="from 0 up"):
        fairness([0.5, math.nan])


def test_worst_follows_the_direction_and_nan_is_worst() -> None:
    assert worst([0.7, 0.4, 0.9]) == 0.4
    assert worst([0.7, 0.4, 0.9], higher_is_better=HIGHER_IS_BETTER["loss"]) == 0.9
    assert math.isnan(worst([0.7, math.nan, 0.9]))
    with pytest.raises(ValueError, match="empty"):
        worst([])


def test_every_metric_has_a_direction() -> None:
    scores, labels = random_problem(30, 3, seed=9)
    produced = {
        *classification_metrics(scores, labels),
        *regression_metrics([1.0, 2.0], [1.0, 3.0]),
        *fairness([0.5, 0.6]),
    }
    assert produced == set(HIGHER_IS_BETTER)
    improving = {name for name, higher in HIGHER_IS_BETTER.items() if higher}
    assert improving == {"accuracy", "balanced_accuracy", "macro_f1", "auroc", "average_precision", "r2", "entropy"}


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_logits_give_the_metrics_of_their_probabilities(classes: int, seed: int) -> None:
    scores, labels = random_problem(200, classes, seed)
    from_logits = logit_metrics(np.log(scores) + 3.0, labels)
    assert from_logits == pytest.approx(classification_metrics(scores, labels), abs=1e-9)
    if classes == 2:
        one = np.log(scores[:, 1]) - np.log(scores[:, 0])
        assert logit_metrics(one, labels) == pytest.approx(from_logits, abs=1e-9)
        assert logit_metrics(one[:, None], labels) == logit_metrics(one, labels)


def test_a_logit_of_twenty_costs_twenty_and_ranks_below_one_of_twenty_five() -> None:
    assert logit_metrics([20.0, -1.0], [0, 0])["loss"] == pytest.approx(
        (20.0 + math.log1p(math.exp(-1.0))) / 2, abs=1e-8
    )
    assert logit_metrics([20.0, 25.0], [0, 1])["auroc"] == 1.0
    assert logit_metrics([25.0, 20.0], [0, 1])["auroc"] == 0.0
    # In float32 both probabilities are 1.0.
    assert logit_metrics(np.array([[0.0, 800.0], [0.0, 900.0]]), [0, 1])["auroc"] == 1.0


def test_sure_logits_of_many_classes_keep_their_order_and_their_loss() -> None:
    logits = np.array([[0.0, 50.0, 1.0], [0.0, 60.0, 1.0], [0.0, 2000.0, 1.0], [5.0, 4.0, 0.0]])
    got = logit_metrics(logits, [0, 1, 1, 0])
    assert got["auroc"] == pytest.approx(1.0)
    expected = [np.logaddexp.reduce(row) - row[k] for row, k in zip(logits, [0, 1, 1, 0], strict=True)]
    assert got["loss"] == pytest.approx(np.mean(expected), rel=1e-12)


def test_rows_of_a_class_that_no_source_has_count_as_wrong_and_cost_nothing() -> None:
    logits = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]])
    got = logit_metrics(logits, [0, 1, 2, 3])
    known = logit_metrics(logits[:2], [0, 1])
    assert got["accuracy"] == 0.5
    assert got["balanced_accuracy"] == 0.5
    assert {n: got[n] for n in ("loss", "auroc", "brier", "ece")} == {
        n: known[n] for n in ("loss", "auroc", "brier", "ece")
    }
    assert logit_metrics(logits, [2] * 4) == {"accuracy": 0.0, "balanced_accuracy": 0.0, "macro_f1": 0.0}


@pytest.mark.parametrize(("classes", "grid"), [(2, 6), (2, None), (5, None)])
def test_the_auroc_of_clients_is_that_of_scikit_learn(classes: int, grid: int | None) -> None:
    scores, labels = random_problem(60, classes, seed=5, grid=grid)
    logits = scores if grid is not None else np.log(scores)
    if classes == 2:
        expected = oracle.roc_auc_score(labels, scores[:, 1])
        one = torch.tensor(logits[:, 1] - logits[:, 0])
        assert auroc(one, torch.tensor(labels)) == pytest.approx(expected, abs=1e-12)
    else:
        expected = oracle.roc_auc_score(labels, scores, multi_class="ovr")
    assert auroc(torch.tensor(logits), torch.tensor(labels)) == pytest.approx(expected, abs=1e-12)
    assert auroc(torch.tensor([0.1, 0.2]), torch.tensor([1, 1])) is None
