"""The numbers behind the alarms, against closed forms, SciPy, scikit-learn and naive loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp, norm
from sklearn.metrics import roc_auc_score

import farfield as ff
from farfield.diagnose.concept_shift import _Rows, disagreements, disagreements_at_once, fit_head
from farfield.diagnose.duplicates import near_duplicates
from farfield.diagnose.feature_shift import Folds, overlap_weights
from farfield.diagnose.finding import chance_of
from farfield.diagnose.gradient_conflict import cosines_to_others, domain_shares
from farfield.diagnose.label_shift import ks_distances, share_distances
from farfield.diagnose.leaks import aurocs
from farfield.diagnose.shared_features import take_sample
from studies.diagnose_alarms import domain
from studies.diagnose_alarms import near_duplicates as copied


def test_distances_of_class_shares_by_hand() -> None:
    # Shares 3/4, 1/4 against (1 + 2)/6, (3 + 0)/6 of the others: 1/4 of the rows would need another class.
    counts = np.array([[3.0, 1.0], [1.0, 3.0], [2.0, 0.0]])
    assert share_distances(counts) == pytest.approx([0.25, abs(1 / 4 - 5 / 6), 1 - 4 / 8])


def test_ks_distances_agree_with_scipy_with_ties() -> None:
    draw = np.random.default_rng(0)
    y, owner = draw.integers(0, 9, 90).astype(float), np.arange(90) % 3
    theirs = [ks_2samp(y[owner == n], y[owner != n]).statistic for n in range(3)]
    assert ks_distances(y, owner, 3) == pytest.approx(theirs)


def test_the_proxy_a_distance_of_two_gaussians_is_near_the_one_of_the_best_classifier() -> None:
    # Two unit Gaussians whose means are 2 apart: the best error is Φ(−1), the distance 2(1 − 2Φ(−1)) = 1.365.
    draw = np.random.default_rng(0)
    z = draw.standard_normal((4000, 5))
    z[:2000, 0] += 2.0
    left = np.arange(4000) < 2000
    error = Folds.of((z - z.mean(0)) / z.std(0), draw).errors(left[None] * 1.0, ~left[None] * 1.0)[0]
    assert error == pytest.approx(norm.cdf(-1), abs=0.02)
    # Equal means and another spread: no linear function of z sees it, its square does (spreads 1 and 3).
    wide = draw.standard_normal((4000, 2))
    wide[:2000] *= 3.0
    seen = Folds.of((wide - wide.mean(0)) / wide.std(0), draw).errors(left[None] * 1.0, ~left[None] * 1.0)[0]
    assert seen < 0.3


def test_overlap_weights_give_both_sides_the_same_class_shares() -> None:
    draw = np.random.default_rng(0)
    label = draw.integers(0, 3, 60)
    left = draw.random(60) < 0.5
    left[label == 2] = True  # the right side lacks class 2
    a, b = overlap_weights(left, ~left, label)
    for code in range(3):
        assert a[label == code].sum() == pytest.approx(b[label == code].sum())
    assert a[label == 2].sum() == 0
    assert (a[~left] == 0).all()


def test_a_head_solves_its_normal_equations_with_classes_of_equal_weight() -> None:
    draw = np.random.default_rng(0)
    x = np.hstack([draw.standard_normal((50, 3)), np.ones((50, 1))])
    y = (draw.random(50) < 0.2).astype(float)
    repeated = np.concatenate(
        [np.repeat(np.flatnonzero(y == c), {0: int((y == 1).sum()), 1: int((y == 0).sum())}[c]) for c in (0, 1)]
    )
    # Rows repeated until both classes have the same number: plain ridge regression on them is the weighted one.
    xr, t = x[repeated], np.eye(2)[y[repeated].astype(int)]
    ridge = 1e-2 * len(xr) * np.diag([1, 1, 1, 1e-7])
    assert fit_head(x, y, 2) == pytest.approx(np.linalg.solve(xr.T @ xr + ridge, xr.T @ t), abs=1e-6)


@pytest.mark.parametrize("classes", [0, 3])
def test_disagreements_at_once_are_those_pair_by_pair(classes: int) -> None:
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(4), [5, 9, 2, 7])
    rows = _Rows(np.ones((23, 1)), np.zeros(23), owner, 4, classes)
    given = draw.integers(0, 3, (4, 23)).astype(float)
    found = disagreements(given, rows)
    assert disagreements_at_once(given, rows) == pytest.approx(found)
    both = np.concatenate([given[:, owner == 1], given[:, owner == 3]], axis=1)
    by_hand = (both[1] != both[3]).mean() if classes else np.sqrt(((both[1] - both[3]) ** 2).mean())
    assert found[3, 1] == pytest.approx(by_hand)


def test_cosines_from_the_gram_matrix_are_those_of_the_vectors() -> None:
    vectors = np.random.default_rng(0).standard_normal((4, 7))
    by_hand = []
    for n in range(4):
        rest = np.delete(vectors, n, axis=0).mean(axis=0)
        by_hand.append(vectors[n] @ rest / np.linalg.norm(vectors[n]) / np.linalg.norm(rest))
    assert cosines_to_others(vectors @ vectors.T) == pytest.approx(by_hand)
    assert cosines_to_others(np.zeros((2, 2))).tolist() == [0.0, 0.0]
    assert cosines_to_others(np.array([[1.0, -1.0], [-1.0, 1.0]])).tolist() == [-1.0, -1.0]


def test_classes_weigh_the_same_in_a_domains_gradient() -> None:
    owner, label = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1])
    assert domain_shares(owner, label, 2).tolist() == [[0.25, 0.25, 0.5, 0, 0], [0, 0, 0, 0.5, 0.5]]


def test_aurocs_agree_with_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    columns = draw.integers(0, 6, (80, 3)).astype(float)
    member = (draw.random((2, 80)) < 0.3).astype(float)
    from scipy.stats import rankdata

    theirs = [[roc_auc_score(member[s], columns[:, c]) for c in range(3)] for s in range(2)]
    assert aurocs(rankdata(columns, axis=0), member) == pytest.approx(np.maximum(theirs, 1 - np.array(theirs)))


def test_near_copies_are_counted_as_a_naive_search_counts_them() -> None:
    task = copied(0)
    sample = take_sample(task, rows=200, total=800, seed=0)
    found = near_duplicates(task, sample)
    distance = cdist(sample.z, sample.z)
    np.fill_diagonal(distance, np.inf)
    same = sample.owner[:, None] == sample.owner
    limit = 0.1 * np.median(np.where(same, distance, np.inf).min(axis=1))
    rows = ((distance <= limit) & ~same).any(axis=1)
    assert rows.sum() >= 80  # ten rows of each of four domains and their originals
    assert found.details["rows"] == rows.sum()
    assert found.verdict == "alarm"


def test_exact_copies_are_found_in_all_rows_and_coarse_columns_cannot_say() -> None:
    draw = np.random.default_rng(0)
    x, y = domain(draw, 1000)
    sites = {"a": (x[:500], y[:500]), "b": (np.concatenate([x[500:], x[:8]]), np.concatenate([y[500:], y[:8]]))}
    task = ff.task_from_arrays("copies", sites)
    found = near_duplicates(task, take_sample(task, rows=50, total=100, seed=0))  # a small sample misses most of them
    assert (found.verdict, found.details["rows"], found.details["compared"]) == ("alarm", 16, 1008)
    assert found.details["pairs"] == [[0, 8], [8, 0]]

    coarse = {s: (draw.integers(0, 2, (100, 3)).astype(float), draw.integers(0, 2, 100)) for s in "ab"}
    task = ff.task_from_arrays("coarse", coarse)
    assert near_duplicates(task, take_sample(task, rows=100, total=200, seed=0)).verdict == "cannot say"


def test_chance_counts_the_value_itself() -> None:
    assert chance_of([1.0, 2.0, 3.0], 2.0) == 0.75
    assert chance_of([1.0, 2.0, 3.0], 9.0) == 0.25
    assert chance_of([1.0, 2.0, 3.0], 1.0, low=True) == 0.5


def test_rows_of_a_group_count_once_and_rows_outside_the_split_not_at_all() -> None:
    draw = np.random.default_rng(0)
    parts = {s: domain(draw, 40) for s in "ab"}
    grouped = ff.task_from_arrays("grouped", parts, group={s: np.arange(40) // 2 for s in "ab"})
    sample = take_sample(grouped, rows=100, total=200, seed=0)
    assert [len(rows) for rows in sample.rows] == [20, 20]
    assert all(len(set((rows // 2).tolist())) == 20 for rows in sample.rows)
    assert any("one row of each group" in note for note in sample.notes)
    few = ff.task_from_arrays("few", parts, group={"a": np.arange(40) // 2, "b": np.arange(40) // 5})
    assert take_sample(few, rows=100, total=200, seed=0).domain_names == ["a"]  # 'b' has eight groups


def test_images_are_reduced_to_few_pixels_and_components() -> None:
    draw = np.random.default_rng(0)
    images = {s: (draw.integers(0, 255, (30, 3, 40, 40), dtype=np.uint8), draw.integers(0, 2, 30)) for s in "ab"}
    task = ff.task_from_arrays("images", images)
    sample = take_sample(task, rows=100, total=200, seed=0)
    assert sample.features == "40 principal components of 768 standardised pixels (3 × 16 × 16)"
    assert sample.z.shape == (60, 40)
    assert sample.z.std(axis=0) == pytest.approx(np.ones(40), abs=0.05)
    assert sample.columns is None


def test_values_that_are_not_finite_are_noted_and_taken_as_zero() -> None:
    draw = np.random.default_rng(0)
    images = {s: (draw.random((20, 1, 6, 6)).astype(np.float32), draw.integers(0, 2, 20)) for s in "ab"}
    images["a"][0][3, 0, 2, 2] = np.nan
    sample = take_sample(ff.task_from_arrays("images", images), rows=100, total=200, seed=0)
    assert sample.notes == ("1 of the rows have values that are not finite; each is taken as 0",)
    assert float(sample.inputs[3, 0, 2, 2]) == 0.0
    assert np.isfinite(sample.z).all()
