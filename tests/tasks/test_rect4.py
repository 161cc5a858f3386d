from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from farfield.tasks import Domain, Task, load


@pytest.fixture(scope="module")
def task() -> Task:
    return load("rect-4")


def fit(*domains: Domain) -> LogisticRegression:
    """Logistic regression with hardly any penalty."""
    x = torch.cat([domain.x for domain in domains]).numpy()
    y = torch.cat([domain.y for domain in domains]).numpy()
    return LogisticRegression(C=100.0, max_iter=10_000).fit(x, y)


def accuracy(model: LogisticRegression, domain: Domain) -> float:
    return float(model.score(domain.x.numpy(), domain.y.numpy()))


def test_four_domains_of_two_equal_classes(task: Task) -> None:
    assert task.domain_names == ("x=-6", "x=-2", "x=2", "x=6")
    assert task.classes == ("below", "above")
    assert [torch.bincount(domain.y).tolist() for domain in task.domains] == [[100, 100]] * 4


def test_each_domain_has_its_own_vertical_boundary_and_the_sides_alternate(task: Task) -> None:
    for domain, boundary, above_is_right in zip(task.domains, (-6, -2, 2, 6), (True, False, True, False), strict=True):
        right = domain.x[:, 0] > boundary
        assert torch.equal(right, (domain.y == 1) == above_is_right)
        assert float((domain.x[:, 0] - boundary).abs().min()) >= 0.2 - 1e-6


def test_rectangles_differ_in_size_and_shape(task: Task) -> None:
    extents = [tuple((d.x.max(0).values - d.x.min(0).values).tolist()) for d in task.domains]
    np.testing.assert_allclose(extents, [(4.0, 2.0), (2.4, 4.0), (2.0, 6.0), (3.6, 3.0)], rtol=0.05)


def test_the_shared_boundary_is_right_for_nine_tenths_of_every_domain(task: Task) -> None:
    for domain in task.domains:
        predicted = (domain.x[:, 1] > 0).long()
        assert float((predicted == domain.y).double().mean()) == 0.9


def test_one_domain_alone_prefers_x1_and_fails_on_the_others(task: Task) -> None:
    for own in task.domains:
        model = fit(own)
        w1, w2 = np.abs(model.coef_[0])
        assert w1 > 3 * w2
        assert accuracy(model, own) >= 0.99
        for other in task.domains:
            if other is not own:
                assert accuracy(model, other) <= 0.55


def test_all_domains_together_prefer_x2(task: Task) -> None:
    model = fit(*task.domains)
    w1, w2 = np.abs(model.coef_[0])
    assert w2 > 100 * w1
    assert model.coef_[0, 1] > 0
    assert min(accuracy(model, domain) for domain in task.domains) >= 0.88


def test_pooling_three_domains_leaves_something_to_gain_on_the_fourth(task: Task) -> None:
    """The horizontal line has 0.9 everywhere; what pooled training reaches on the outer domains is well below it."""
    unseen = {}
    for held_out in task.domains:
        model = fit(*(domain for domain in task.domains if domain is not held_out))
        assert abs(model.coef_[0, 1]) > 10 * abs(model.coef_[0, 0])
        unseen[held_out.name] = accuracy(model, held_out)
    assert 0.65 < unseen["x=-6"] < 0.80
    assert 0.70 < unseen["x=6"] < 0.83
    assert min(unseen["x=-2"], unseen["x=2"]) > 0.85
