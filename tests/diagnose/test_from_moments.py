"""A diagnosis from moments and heads: exact where it can be, and in agreement with the rows on Gaussian data."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import f_oneway, norm
from sklearn.linear_model import LogisticRegression

import farfield as ff
from farfield.diagnose.diagnosis import diagnose
from farfield.diagnose.feature_shift import Folds, overlap_weights
from farfield.diagnose.finding import Diagnosis
from farfield.diagnose.from_moments import diagnose_sites
from farfield.diagnose.moment_measures import (
    class_adjusted,
    class_gradient,
    gaussian_proxy_a_distance,
    head_differences,
    heterogeneity,
)
from farfield.diagnose.shared_features import take_sample
from farfield.diagnose.site_moments import (
    LEAST_OF_CLASS,
    RIDGE,
    SENDS,
    SiteMoments,
    feature_width,
    multinomial_head,
    shared_projection,
    site_moments,
)
from farfield.math import linear_head_gradient
from farfield.tasks.task import Task
from studies.diagnose_alarms import MADE


def told_by(task: Task) -> dict[str, SiteMoments]:
    sample = take_sample(task, rows=400, total=4000, seed=0)
    found = {}
    for number, name in enumerate(sample.domain_names):
        rows = sample.owner == number
        z = shared_projection(sample.inputs[torch.from_numpy(rows)], 20, 0)
        found[name] = SiteMoments.model_validate_json(json.dumps(site_moments(z, sample.y[rows], sample.classes)))
    return found


def from_moments(task: Task) -> Diagnosis:
    return diagnose_sites(told_by(task), task=task.name, classes=task.classes, data="d", features="columns")


@pytest.mark.parametrize("name", ["none", "label shift", "feature shift", "concept shift", "gradient conflict"])
def test_moments_ring_the_same_alarms_as_rows(name: str) -> None:
    make, expected = MADE[name]
    task = make(0)
    found = from_moments(task)
    assert set(found.alarms) == set(expected)  # as with rows: test_alarms.py
    assert Diagnosis.from_json(found.to_json()) == found
    for kind in ("near-duplicates", "domain leak", "label leak"):
        assert found[kind].verdict == "cannot say"


def test_class_shares_are_exactly_those_of_the_rows() -> None:
    task = MADE["label shift"][0](0)
    rows, moments = diagnose(task, quick=True)["label shift"], from_moments(task)["label shift"]
    assert moments.details["counts"] == rows.details["counts"]
    assert moments.value == pytest.approx(rows.value)


def test_the_distance_of_gaussians_is_that_of_the_best_classifier_and_of_a_classifier_on_rows() -> None:
    draw = np.random.default_rng(0)
    z = draw.standard_normal((20000, 4))
    owner, label = np.arange(20000) % 2, (draw.random(20000) < np.where(np.arange(20000) % 2, 0.7, 0.3)).astype(int)
    z[:, 0] += 3.0 * label  # classes differ, and so do their shares
    z[owner == 1, 1] += 1.5  # the shift itself
    a, b = (SiteMoments.model_validate(site_moments(z[owner == n], label[owner == n], 2)) for n in (0, 1))
    squared, p = class_adjusted(a, b)
    # With equal class shares only the second feature differs: distance 1.5, error Φ(−0.75).
    assert gaussian_proxy_a_distance(squared) == pytest.approx(
        2 - 4 * norm.cdf(-0.75), abs=0.05
    )  # its deviation is 0.009
    assert p < 1e-100
    weights = overlap_weights((owner == 0)[None], (owner == 1)[None], label)
    error = float(Folds.of((z - z.mean(0)) / z.std(0), draw).errors(*weights)[0])
    assert gaussian_proxy_a_distance(squared) == pytest.approx(2 - 4 * error, abs=0.04)
    plain, _ = class_adjusted(a, b, adjust=False)
    assert plain > squared + 0.1  # the classes' shares tell the sites apart as well
    assert gaussian_proxy_a_distance(0.0) == 0.0


def test_hotellings_test_rings_as_often_as_it_says_where_nothing_shifts() -> None:
    draw = np.random.default_rng(0)
    chances = []
    for _ in range(200):
        sites = []
        for rows in (60, 90):
            y = (draw.random(rows) < 0.5).astype(int)
            sites.append(SiteMoments.model_validate(site_moments(draw.standard_normal((rows, 5)), y, 2)))
        chances.append(class_adjusted(sites[0], sites[1])[1])
    assert np.mean(np.array(chances) < 0.1) == pytest.approx(0.1, abs=0.05)


def test_a_head_and_its_information_are_those_of_a_penalised_logistic_regression() -> None:
    draw = np.random.default_rng(0)
    z = draw.standard_normal((80, 3))
    y = (draw.random(80) < 1 / (1 + np.exp(-z[:, 0]))).astype(int)
    x = np.hstack([z, np.ones((80, 1))])
    head, information = multinomial_head(x, y, 2)
    theirs = LogisticRegression(C=1 / RIDGE, fit_intercept=False, tol=1e-10, max_iter=1000).fit(x, y)
    assert head == pytest.approx(theirs.coef_, abs=1e-4)
    # The information is the second derivative of the penalised loss.
    weights = torch.tensor(head, dtype=torch.float64)

    def loss(beta: torch.Tensor) -> torch.Tensor:
        logits = torch.from_numpy(x) @ beta
        total = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, torch.from_numpy(y).double(), reduction="sum"
        )
        return total + RIDGE / 2 * beta.square().sum()

    assert information == pytest.approx(torch.autograd.functional.hessian(loss, weights[0]).numpy(), abs=1e-8)


def test_a_head_of_three_classes_has_no_gradient_left() -> None:
    draw = np.random.default_rng(0)
    x = np.hstack([draw.standard_normal((90, 2)), np.ones((90, 1))])
    y = draw.integers(0, 3, 90)
    head, information = multinomial_head(x, y, 3)
    beta = torch.tensor(head, dtype=torch.float64, requires_grad=True)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        logits = torch.from_numpy(x) @ flat.reshape(2, 3).T
        logits = torch.cat([torch.zeros(90, 1, dtype=torch.float64), logits], dim=1)
        entropy = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum")
        return entropy + RIDGE / 2 * flat.square().sum()

    flat = beta.detach().reshape(-1)
    (gradient,) = torch.autograd.grad(loss(f := flat.clone().requires_grad_()), f)
    assert gradient.abs().max() < 1e-4
    assert information == pytest.approx(torch.autograd.functional.hessian(loss, flat).numpy(), abs=1e-8)


def test_cochrans_q_of_single_numbers_by_hand() -> None:
    # Precisions 1 and 4: the common value is (0 + 4·5)/5 = 4, and Q = 16 + 4·1 = 20.
    q, freedom = heterogeneity([np.array([0.0]), np.array([5.0])], [np.array([[1.0]]), np.array([[0.25]])])
    assert (q, freedom) == (pytest.approx(20.0), 1)


def test_the_difference_of_heads_is_that_of_their_logits_on_the_pooled_rows() -> None:
    draw = np.random.default_rng(0)
    parts = []
    for turn in (1.0, -1.0):
        z = draw.standard_normal((5000, 2))
        parts.append((z, (draw.random(5000) < 1 / (1 + np.exp(-turn * z[:, 0] - z[:, 1]))).astype(int)))
    told = [SiteMoments.model_validate(site_moments(z, y, 2)) for z, y in parts]
    pooled = np.concatenate([z for z, _ in parts])
    logits = [pooled @ np.asarray(site.head)[0, :2] for site in told]
    by_rows = float((logits[0] - logits[1]).std())
    assert head_differences(told)[0, 1] == pytest.approx(by_rows, abs=0.02)
    assert by_rows == pytest.approx(2.0, abs=0.1)  # slopes 1 and −1 on a feature of variance 1


def test_the_gradient_from_class_means_is_that_of_a_linear_head_at_zero() -> None:
    draw = np.random.default_rng(0)
    y = torch.arange(30) % 3  # every class has ten rows
    z = torch.from_numpy(draw.standard_normal((30, 4)))
    weight, _ = linear_head_gradient(z, torch.zeros(30, 3, dtype=torch.float64), y)
    means = np.stack([z[y == c].mean(dim=0).numpy() for c in range(3)])
    assert class_gradient(means) == pytest.approx(weight.numpy().reshape(-1))


def test_a_regression_compares_means_slopes_and_gradients() -> None:
    draw = np.random.default_rng(0)

    def sites(slopes: tuple[float, ...], shift: float) -> Task:
        parts = {}
        for number, slope in enumerate(slopes):
            x = draw.standard_normal((150, 3))
            parts[f"s{number}"] = (x, slope * x[:, 0] + shift * number + 0.5 * draw.standard_normal(150))
        return ff.task_from_arrays("numbers", parts)

    assert from_moments(sites((1.0, 1.0, 1.0), 0.0)).alarms == ()
    assert from_moments(sites((1.0, 1.0, 1.0), 1.0)).alarms == ("label shift",)
    assert from_moments(sites((1.0, 1.0, -1.0), 0.0)).alarms == ("concept shift", "gradient conflict")
    task = sites((1.0, 1.0), 0.3)
    theirs = f_oneway(*(domain.y.numpy() for domain in task.domains)).pvalue
    assert from_moments(task)["label shift"].p == pytest.approx(theirs, rel=1e-3)


def test_what_leaves_a_site_is_what_is_declared_and_small_classes_are_not_described() -> None:
    draw = np.random.default_rng(0)
    z, y = draw.standard_normal((40, 3)), np.array([0] * 37 + [1] * 3)
    told = site_moments(z, y, 2)
    assert set(told) == set(SENDS) - {"label_mean", "label_variance"}
    assert LEAST_OF_CLASS > 3
    assert told["counts"] == [37, 0]
    assert told["means"][1] == [0.0, 0.0, 0.0]
    assert np.asarray(told["scatter"]) == pytest.approx(np.cov(z[:37].T, bias=True))
    numbers = site_moments(z, draw.standard_normal(40), 0)
    assert set(numbers) == set(SENDS)
    with pytest.raises(ff.UserError, match="too few to be described"):
        site_moments(z[:10], y[:10], 2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"counts": (40,)}, "'counts' has the shape"),
        ({"counts": (3, 3)}, "at least 20 rows"),
        ({"scatter": ((1.0, 0.0), (0.0, -1.0))}, "'scatter' is no covariance"),
        ({"label_mean": 1.0, "label_variance": 1.0}, "belong to a regression"),
    ],
)
def test_moments_that_no_rows_could_have_are_refused(change: dict[str, object], sentence: str) -> None:
    draw = np.random.default_rng(0)
    told = site_moments(draw.standard_normal((40, 2)), np.arange(40) % 2, 2)
    SiteMoments.model_validate(told).check(2, 2)
    with pytest.raises(ff.UserError, match=sentence):
        SiteMoments.model_validate({**told, **change}).check(2, 2)


def test_the_projection_is_the_same_everywhere_and_narrower_ones_are_parts_of_wider_ones() -> None:
    x = torch.randn(5, 60, generator=torch.Generator().manual_seed(0))
    wide, narrow = shared_projection(x, 20, 3), shared_projection(x, 6, 3)
    assert wide[:, :6] == pytest.approx(narrow)
    assert shared_projection(x[:2], 6, 3) == pytest.approx(narrow[:2])
    assert not np.allclose(shared_projection(x, 6, 4), narrow)
    assert shared_projection(torch.zeros(2, 3, 20, 20, dtype=torch.uint8), 40, 0).shape == (2, 40)
    assert feature_width(13, 2, 1000) == 13
    assert feature_width(100, 2, 120) == 12
    assert feature_width(768, 10, 5000) == 40
    assert feature_width(768, 100, 5000) == 3
