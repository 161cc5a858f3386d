"""φ's problem: golden penalties, and minima that an independent solver finds too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from farfield.math import HeadMixture, fish_step, irm_penalty, mix_heads, newton_minimum

# golden.json, 'fedloe_head_ensemble', 'irm_vrex_groupdro', 'fish_step'
LOGITS = [[2.0, -1.0, 0.5], [0.3, 0.2, -0.4], [1.0, 1.5, -0.5], [-0.2, 0.4, 0.9]]
LABELS = [0, 2, 1, 2]


def problem(seed: int, kind: str = "classes", groups: int = 4, heads: int = 3, **options: Any) -> HeadMixture:
    """Heads that agree with the labels to a different degree in each group, and not so well that all rows are right."""
    generator = torch.Generator().manual_seed(seed)
    rows, outputs = 20 * groups, 3 if kind == "classes" else 1
    of_row = torch.arange(rows) % groups
    y = torch.randint(3 if kind == "classes" else 2, (rows,), generator=generator)
    signal = F.one_hot(y, 3).double() if kind == "classes" else (2.0 * y.double() - 1).unsqueeze(1)
    strength = 0.3 + torch.rand((groups, heads), generator=generator, dtype=torch.float64)
    noise = torch.randn((rows, heads, outputs), generator=generator, dtype=torch.float64)
    predictions = signal.unsqueeze(1) * strength[of_row].unsqueeze(2) + noise
    targets = y + 0.3 * noise[:, 0, 0] if kind == "values" else y
    weights = torch.rand(groups, generator=generator, dtype=torch.float64)
    centre = torch.full((heads,), 1 / heads, dtype=torch.float64)
    return HeadMixture(predictions, targets, of_row, weights / weights.sum(), centre, **options)


def independent(of: HeadMixture, phi: np.ndarray) -> float:
    """The objective written again, group by group, from autograd and torch's losses."""
    at = torch.tensor(phi, requires_grad=True)
    total = of.ridge / 2 * float(((at - of.centre) ** 2).sum().detach())
    risks, penalties, gradients = [], [], []
    for group in range(len(of.weights)):
        rows = of.groups == group
        y = of.targets[rows]
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        mixed = scale * sum(at[c] * of.predictions[rows][:, c] for c in range(len(phi)))  # type: ignore[operator]
        if y.is_floating_point():
            losses = F.mse_loss(mixed.squeeze(1), y, reduction="none")
        elif mixed.shape[1] == 1:
            losses = F.binary_cross_entropy_with_logits(mixed.squeeze(1), y.double(), reduction="none")
        else:
            losses = F.cross_entropy(mixed, y, reduction="none")
        by_phi, by_scale = torch.autograd.grad(losses.mean(), [at, scale])
        risks.append(float(losses.mean().detach()))
        gradients.append(by_phi.numpy())
        penalties.append(float(by_scale) ** 2 if of.penalty == "irm" else float(losses.var(unbiased=False).detach()))
    if of.penalty == "rex":
        penalty = float(np.var(risks))
    elif of.penalty == "fish":
        pairs = [float(a @ b) for i, a in enumerate(gradients) for j, b in enumerate(gradients) if i != j]
        penalty = -float(np.mean(pairs))
    else:
        penalty = float(np.mean(penalties)) if of.penalty != "none" else 0.0
    return total + float(of.weights.numpy() @ np.array(risks)) + of.lam * penalty


OBJECTIVES = {"none": 0.0, "irm": 2.0, "rex": 2.0, "rex-within": 0.3, "fish": 0.05}


@pytest.mark.parametrize("kind", ["classes", "binary", "values"])
@pytest.mark.parametrize("penalty", OBJECTIVES)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_solution_is_a_minimum_that_scipy_finds_too(penalty: Any, kind: str, seed: int) -> None:
    of = problem(seed, kind, penalty=penalty, lam=OBJECTIVES[penalty], ridge=0.01)
    found = of.solve()
    assert found.converged
    assert found.value == pytest.approx(independent(of, found.x.numpy()), rel=1e-12)
    assert found.value <= float(of.objective(of.centre))

    # Derivative-free, from a disturbed point, so that nothing of ours is used but the starting region.
    start = found.x.numpy() + 0.05 * np.array([1.0, -1.0, 0.5])
    options = {"xatol": 1e-9, "fatol": 1e-14, "maxiter": 4000, "maxfev": 4000}
    theirs = minimize(lambda phi: independent(of, phi), start, method="Nelder-Mead", options=options)
    assert found.value <= theirs.fun + 1e-10
    assert found.x.tolist() == pytest.approx(theirs.x.tolist(), abs=1e-6)


def test_without_a_penalty_every_start_leads_to_the_one_optimum() -> None:
    of = problem(3)
    ours = of.solve().x
    for seed in range(3):
        start = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert newton_minimum(of.objective, start).x.tolist() == pytest.approx(ours.tolist(), abs=1e-9)


@pytest.mark.parametrize("penalty", ["irm", "rex", "fish"])
def test_a_penalty_of_weight_zero_gives_the_least_risk(penalty: Any) -> None:
    assert problem(4, penalty=penalty, lam=0.0).solve().x.tolist() == problem(4).solve().x.tolist()


@pytest.mark.parametrize("penalty", ["irm", "rex"])
def test_a_larger_weight_gives_a_smaller_penalty_and_a_larger_risk(penalty: Any) -> None:
    solved = [(of, of.solve().x) for of in (problem(5, penalty=penalty, lam=lam) for lam in (0.0, 1.0, 10.0))]
    penalties = [float(of.penalty_value(phi)) for of, phi in solved]
    risks = [float(of.risk(phi)) for of, phi in solved]
    assert penalties == sorted(penalties, reverse=True)
    assert penalties[2] < 0.7 * penalties[0]
    assert risks == sorted(risks)


def test_a_heavy_ridge_keeps_the_shares() -> None:
    of = problem(6, penalty="irm", lam=1.0, ridge=1e9)
    assert of.solve().x.tolist() == pytest.approx(of.centre.tolist(), abs=1e-7)


def test_with_a_ridge_separable_rows_have_a_finite_optimum() -> None:
    y = torch.arange(12) % 3
    predictions = F.one_hot(y, 3).double().unsqueeze(1).repeat(1, 2, 1)
    groups, half = torch.arange(12) % 2, torch.tensor([0.5, 0.5])
    found = HeadMixture(predictions, y, groups, half, half, penalty="irm", lam=1.0, ridge=0.05).solve()
    assert found.converged
    assert 0.5 < float(found.x.min()) < 10.0


def test_a_mixture_that_predicts_nothing_counts_as_collapsed() -> None:
    of = problem(7, penalty="irm", lam=100.0)
    assert of.collapsed(torch.zeros(3, dtype=torch.float64))
    assert of.collapsed(torch.full((3,), float("nan"), dtype=torch.float64))
    assert not of.collapsed(of.centre)
    assert float(of.penalty_value(torch.zeros(3, dtype=torch.float64))) == 0.0


def test_something_that_is_not_finite_is_not_taken_for_a_minimum() -> None:
    of = problem(8)
    bad = HeadMixture(of.predictions * float("inf"), of.targets, of.groups, of.weights, of.centre)
    assert not bad.solve().converged


def test_a_function_without_a_minimum_does_not_converge() -> None:
    assert not newton_minimum(lambda x: (-x).exp().sum() - 0.1 * x.sum(), torch.zeros(2), max_steps=30).converged


def test_newton_leaves_a_saddle_and_finds_the_minimum() -> None:
    def double_well(x: Tensor) -> Tensor:
        return (x[0] ** 2 - 1) ** 2 + x[1] ** 2

    found = newton_minimum(double_well, torch.tensor([0.1, 1.0]))
    assert found.converged
    assert found.x.tolist() == pytest.approx([1.0, 0.0], abs=1e-10)


def test_rosenbrock_is_solved() -> None:
    found = newton_minimum(lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2, torch.tensor([-1.2, 1.0]))
    assert found.converged
    assert found.x.tolist() == pytest.approx([1.0, 1.0], abs=1e-9)


def test_mixed_heads_are_golden_and_predict_what_the_mixed_predictions_are() -> None:
    weights = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [1.0, -1.0]]], dtype=torch.float64)
    biases = torch.tensor([[0.1, -0.1], [0.0, 0.2]], dtype=torch.float64)
    phi, z = torch.tensor([0.7, 0.6], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    mixed = mix_heads(torch.cat([weights.flatten(1), biases], dim=1), phi)
    assert mixed.tolist() == pytest.approx([1.0, 0.3, 0.6, 0.1, 0.07, 0.05])
    predictions = (weights @ z + biases).unsqueeze(0)
    of = HeadMixture(predictions, torch.tensor([0]), torch.tensor([0]), torch.ones(1), phi)
    assert of._mixed(phi)[0].tolist() == pytest.approx([1.67, 0.85], rel=1e-12)
    assert (mixed[:4].view(2, 2) @ z + mixed[4:]).tolist() == pytest.approx([1.67, 0.85], rel=1e-12)


def test_the_penalties_are_golden() -> None:
    logits, y = torch.tensor(LOGITS, dtype=torch.float64).unsqueeze(1), torch.tensor(LABELS)
    one, phi = torch.ones(1), torch.ones(1, dtype=torch.float64)
    groups = torch.zeros(4, dtype=torch.int64)
    irm = HeadMixture(logits, y, groups, one, one, penalty="irm").penalty_value(phi)
    assert float(irm) == pytest.approx(0.018047846116714523, rel=1e-12)
    assert float(irm) == pytest.approx(float(irm_penalty(logits.squeeze(1), y)), rel=1e-12)
    within = HeadMixture(logits, y, groups, one, one, penalty="rex-within").penalty_value(phi)
    assert float(within) == pytest.approx(0.24663988445992485, rel=1e-12)

    # Squared errors of 0.5, 1 and 2 in three domains.
    values = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).sqrt().view(3, 1, 1)
    rex = HeadMixture(values, torch.zeros(3), torch.arange(3), torch.ones(3).double() / 3, one, penalty="rex", lam=10.0)
    assert float(rex.penalty_value(phi)) == pytest.approx(0.38888888888888884, rel=1e-12)
    assert float(rex.objective(phi)) == pytest.approx(5.055555555555555, rel=1e-12)


def test_the_sequential_step_of_fish_is_golden() -> None:
    gradients = [lambda w: 1.0 * (w - 0.0), lambda w: 2.0 * (w - 3.0)]
    w = torch.ones(1, dtype=torch.float64)
    assert float(fish_step(w, gradients, lr=0.1, meta_lr=1.0)) == pytest.approx(1.32, rel=1e-12)
    assert float(fish_step(w, gradients, lr=0.1, meta_lr=0.5)) == pytest.approx(1.16, rel=1e-12)


def test_small_sequential_steps_settle_near_the_optimum_of_the_penalty() -> None:
    """Steps of size α in both orders descend on R − α(G − 1)/4 · (mean inner product), up to α²."""
    groups, step = 3, 0.2
    lam = step * (groups - 1) / 4
    of = problem(9, groups=groups, penalty="fish", lam=lam)
    of = HeadMixture(of.predictions, of.targets, of.groups, torch.ones(groups) / groups, of.centre, "fish", lam)
    by_group = [lambda at, g=g: of.group_gradients(at)[g] for g in range(groups)]
    phi = of.centre
    for _ in range(600):
        phi = (fish_step(phi, by_group, step, 1.0) + fish_step(phi, by_group[::-1], step, 1.0)) / 2
    penalised, plain = of.solve().x, problem_without_penalty(of).solve().x
    assert float((phi - penalised).norm()) < 0.35 * float((phi - plain).norm())


def problem_without_penalty(of: HeadMixture) -> HeadMixture:
    return HeadMixture(of.predictions, of.targets, of.groups, of.weights, of.centre)


def test_clients_of_one_domain_are_pooled_with_their_shares() -> None:
    of = problem(10, groups=1)
    parts = [slice(0, 5), slice(5, 12), slice(12, 20)]
    pooled = HeadMixture.pooled(
        [of.predictions[p] for p in parts],
        [of.targets[p] for p in parts],
        ["photo", "art", "photo"],
        torch.tensor([0.2, 0.5, 0.3]),
        of.centre,
    )
    assert pooled.weights.tolist() == pytest.approx([0.5, 0.5])
    assert pooled.groups.tolist() == [0] * 5 + [1] * 7 + [0] * 8
    one = problem_without_penalty(of).group_risks(of.centre)
    rows = torch.tensor([13.0, 7.0], dtype=torch.float64) / 20
    assert float(pooled.group_risks(of.centre) @ rows) == pytest.approx(float(one), rel=1e-12)
