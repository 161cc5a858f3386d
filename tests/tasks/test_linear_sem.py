from __future__ import annotations

import numpy as np
import pytest
import torch

from farfield.tasks import Domain, load
from farfield.tasks.data_sets.linear_sem import LinearSEM

#: The entry `fedloe_linear_sem` of the reference numbers: three domains, equal sizes.
GOLDEN = LinearSEM(sigma1_sq=(1.0, 2.0, 0.5), sigma2_sq=(0.1, 1.0, 4.0), sigma3_sq=0.5)
ERM = [0.19047619047619038, 0.3809523809523808, 0.32380952380952355, -0.6476190476190479]
OSA = [0.3922077922077925, 0.784415584415585, 0.24311688311688298, -0.4862337662337661]
LOCAL = [
    [0.8, 1.6, 0.08, -0.16],
    [0.28571428571428575, 0.5714285714285716, 0.2857142857142857, -0.5714285714285714],
    [0.09090909090909094, 0.18181818181818188, 0.36363636363636354, -0.7272727272727273],
]


def least_squares(*domains: Domain) -> np.ndarray:
    x = torch.cat([domain.x for domain in domains]).double().numpy()
    y = torch.cat([domain.y for domain in domains]).double().numpy()
    return np.linalg.solve(x.T @ x, x.T @ y)


def noise(sem: LinearSEM, domain: Domain) -> np.ndarray:
    """ξ1, ξ2, ξ3 as columns, recovered from the features and the target."""
    x, y = domain.x.double().numpy(), domain.y.double().numpy()
    x_i, x_s = x[:, : len(sem.alpha_i)], x[:, len(sem.alpha_i) :]
    return np.column_stack([x_i, y - x_i @ sem.alpha_i, x_s - np.outer(y, sem.alpha_s)])


def test_the_default_has_four_domains_of_400_rows() -> None:
    task = load("linear-sem")
    assert task.domain_names == ("noise-0.1", "noise-1", "noise-4", "noise-9")
    assert [tuple(domain.x.shape) for domain in task.domains] == [(400, 4)] * 4
    assert [tuple(domain.y.shape) for domain in task.domains] == [(400,)] * 4
    assert (task.kind, task.classes) == ("regression", ())
    assert not task.model.head_bias


def test_sample_moments_of_the_noise_are_exact() -> None:
    sem = LinearSEM()
    for number, domain in enumerate(sem.task().domains):
        xi = noise(sem, domain)
        variances = [sem.sigma1_sq[number]] * 2 + [sem.sigma2_sq[number]] + [0.5] * 2
        np.testing.assert_allclose(xi.mean(axis=0), np.zeros(5), atol=1e-7)
        np.testing.assert_allclose(xi.T @ xi / len(xi), np.diag(variances), atol=2e-6)


def test_least_squares_on_each_domain_is_the_closed_form() -> None:
    for domain, expected in zip(GOLDEN.task().domains, LOCAL, strict=True):
        np.testing.assert_allclose(least_squares(domain), expected, atol=2e-6)


def test_pooled_least_squares_is_the_closed_form_of_erm() -> None:
    np.testing.assert_allclose(least_squares(*GOLDEN.task().domains), ERM, atol=2e-6)


def test_the_mean_of_local_solutions_is_the_closed_form_of_one_shot_averaging() -> None:
    local = [least_squares(domain) for domain in GOLDEN.task().domains]
    np.testing.assert_allclose(np.mean(local, axis=0), OSA, atol=2e-6)


def test_the_closed_form_holds_for_the_fewest_rows_possible() -> None:
    few = LinearSEM(sigma1_sq=GOLDEN.sigma1_sq, sigma2_sq=GOLDEN.sigma2_sq, rows=6).task()
    assert sum(len(domain) for domain in few.domains) == 18
    np.testing.assert_allclose(least_squares(*few.domains), ERM, atol=2e-6)


def test_other_lengths_of_alpha_make_other_widths() -> None:
    """One invariant feature of parameter 3, three spurious ones with ‖α_S‖² = 3, σ2² = 2, σ3² = 1: eq. 22 by hand."""
    sem = LinearSEM(alpha_i=(3.0,), alpha_s=(1.0, -1.0, 1.0), sigma1_sq=(1.0,), sigma2_sq=(2.0,), sigma3_sq=1.0)
    task = sem.task("mine")
    assert task.name == "mine"
    assert task.model.input_shape == (4,)
    np.testing.assert_allclose(least_squares(task.domains[0]), [3 / 7, 2 / 7, -2 / 7, 2 / 7], atol=2e-6)


def test_a_domain_stays_the_same_when_others_are_added() -> None:
    assert torch.equal(GOLDEN.task().domains[2].x, LinearSEM().task().domains[2].x)


def test_another_seed_gives_other_rows_and_the_same_solution() -> None:
    one, two = GOLDEN.domain(0), LinearSEM(seed=1).domain(0)
    assert not torch.equal(one.x, two.x)
    np.testing.assert_allclose(least_squares(one), least_squares(two), atol=2e-6)


def test_gradient_descent_with_the_defaults_reaches_pooled_least_squares() -> None:
    task = load("linear-sem")
    for held_out in task.domain_names:
        sources = [domain for domain in task.domains if domain.name != held_out]
        x, y = torch.cat([d.x for d in sources]).double(), torch.cat([d.y for d in sources]).double()
        w = torch.zeros(4, dtype=torch.float64)
        for _ in range(task.defaults["rounds"]):
            w -= task.defaults["lr"] * 2 * x.T @ (x @ w - y) / len(y)
        np.testing.assert_allclose(w.numpy(), least_squares(*sources), atol=0.01)
        # A single client is stable too: the step stays below 2 over the largest curvature.
        for domain in sources:
            curvature = 2 * torch.linalg.eigvalsh(domain.x.T @ domain.x / len(domain)).max()
            assert task.defaults["lr"] * float(curvature) < 1.5


def test_standard_deviations_are_roots_of_the_variances() -> None:
    sem = LinearSEM()
    assert sem.sigma2 == pytest.approx((0.31622777, 1.0, 2.0, 3.0))
    assert sem.sigma1 == pytest.approx((1.0, 1.41421356, 0.70710678, 1.22474487))
    assert sem.sigma3 == pytest.approx(0.70710678)


def test_domains_of_equal_noise_are_named_by_position() -> None:
    assert LinearSEM(sigma1_sq=(1, 2), sigma2_sq=(3, 3)).domain_names == ("domain-0", "domain-1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 5}, "5 rows cannot hold 5 uncorrelated noise columns of mean 0; use at least 6 rows"),
        ({"sigma3_sq": 0.0}, "variances must be positive numbers"),
        ({"sigma2_sq": (1.0,)}, "sigma1_sq has 4 domains and sigma2_sq has 1; give both one variance a domain"),
        ({"alpha_s": ()}, "alpha_i and alpha_s need at least one entry each"),
    ],
)
def test_parameters_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearSEM(**settings)  # type: ignore[arg-type]
