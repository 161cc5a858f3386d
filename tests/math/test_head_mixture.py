"""φ's problem: golden penalties, and minima that an independent solver finds too."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.slow
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


def one_head(logit: float, penalty: Any = "none", **options: Any) -> HeadMixture:
    """One row, one head, the squared error to 1: the risk is (logit · φ − 1)², and 1 where φ = 0 predicts nothing."""
    one = torch.ones(1, dtype=torch.float64)
    predictions = torch.full((1, 1, 1), logit, dtype=torch.float64)
    return HeadMixture(predictions, one, torch.zeros(1, dtype=torch.int64), one, one, penalty, **options)


@pytest.mark.parametrize(
    ("logit", "phi", "refused"),
    [
        # The shares have risk 0.04 and gain 0.96 over nothing; half of it is lost at a risk of 0.52.
        (0.8, 0.3, True),  # 0.5776
        (0.8, 0.4, False),  # 0.4624
        (0.8, 2.1, False),  # 0.4624, too large instead of too small
        (0.8, 2.2, True),  # 0.5776
        # The shares have risk 4, more than nothing has. The least risk is 0, at φ = 1/3: refused above 0.5.
        (3.0, 0.0, True),  # 1: predicts nothing
        (3.0, 0.05, True),  # 0.7225
        (3.0, 0.1, False),  # 0.49
        (3.0, 0.5, False),  # 0.25
        (3.0, 0.6, True),  # 0.64
        (3.0, 0.8, True),  # 1.96: better than the shares, and worse than nothing
        (3.0, 0.9, True),  # 2.89
    ],
)
def test_a_mixture_is_refused_when_half_of_what_can_be_gained_is_given_up(
    logit: float, phi: float, refused: bool
) -> None:
    assert one_head(logit).collapsed(torch.tensor([phi], dtype=torch.float64)) is refused


def test_shares_are_the_reference_while_they_do_better_than_nothing_and_the_least_risk_is_otherwise() -> None:
    good, bad = one_head(0.8, "irm", lam=100.0), one_head(3.0, "irm", lam=100.0)
    assert good.reference is good.centre
    assert bad.reference.tolist() == pytest.approx([1 / 3], abs=1e-9)


def test_fish_is_not_accepted_where_it_loses_to_predicting_nothing() -> None:
    """Sure and wrong heads: the shares cost 130, nothing costs 0.69, and φ at half of the shares 65 of them."""
    labels = torch.tensor([1, 0, 1, 0])
    logits = torch.tensor([-260.0, 260.0, 0.1, -0.1], dtype=torch.float64).view(4, 1, 1)
    of = HeadMixture(logits, labels, torch.zeros(4, dtype=torch.int64), torch.ones(1), torch.ones(1), "fish", 0.05)
    assert float(of.risk(of.centre)) == pytest.approx((260 + 260 + 2 * 0.6443966600735709) / 4, rel=1e-9)
    half = torch.tensor([0.5], dtype=torch.float64)
    assert float(of.risk(half)) == pytest.approx((130 + 130 + 2 * 0.6684596480) / 4, rel=1e-6)
    assert of.collapsed(half)
    assert float(of.risk(of.reference)) < 0.6931472


def test_a_reference_that_gains_nothing_refuses_only_what_is_worse_still() -> None:
    """A ridge so heavy that the reference stays near the shares and has a risk of 3.2: less than that is accepted."""
    of = one_head(3.0, ridge=153.0)
    # (3φ − 1)² + 76.5 (φ − 1)² is least there.
    assert of.reference.tolist() == pytest.approx([159 / 171], abs=1e-9)
    assert not of.collapsed(torch.tensor([0.9], dtype=torch.float64))
    assert of.collapsed(torch.tensor([0.99], dtype=torch.float64))


def test_steps_of_sgd_are_the_ones_computed_by_hand() -> None:
    """The gradient of (0.8 φ − 1)² at 1 is −0.32, and 0.1 of decay adds 0.1."""
    of = one_head(0.8, ridge=7.0)  # no ridge in the steps
    assert of.descend("sgd", 1, lr=0.5, weight_decay=0.1).tolist() == pytest.approx([1.11], rel=1e-12)
    # At 1.11 it is 1.6 · (0.888 − 1) + 0.111 = −0.0682.
    assert of.descend("sgd", 2, lr=0.5, weight_decay=0.1).tolist() == pytest.approx([1.1441], rel=1e-12)


def test_the_penalty_of_a_step_has_its_weight() -> None:
    """IRM: d/dw (0.8 w φ − 1)² at w = 1 is 1.6 φ (0.8 φ − 1) = s; s² has the derivative 2 s (2.56 φ − 1.6)."""
    of = one_head(0.8, "irm", lam=10.0)
    slope = -0.32 + 10.0 * 2.0 * -0.32 * (2.56 - 1.6)
    assert of.descend("sgd", 1, lr=0.01).tolist() == pytest.approx([1.0 - 0.01 * slope], rel=1e-12)


@pytest.mark.parametrize("penalty", ["none", "irm", "rex", "rex-within"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_are_those_of_torchs_optimizers_on_an_objective_written_again(penalty: Any, optimizer: Any) -> None:
    of = problem(11, penalty=penalty, lam=3.0)
    phi = of.centre.clone().requires_grad_()
    theirs = torch.optim.SGD([phi], 0.05, weight_decay=5e-4) if optimizer == "sgd" else torch.optim.Adam([phi], 0.01)
    for _ in range(4):
        at = phi.detach().numpy()
        small = 1e-6 * np.eye(3)
        slopes = [(independent(of, at + h) - independent(of, at - h)) / 2e-6 for h in small]
        phi.grad = torch.tensor(slopes, dtype=torch.float64)
        theirs.step()
    ours = of.descend(optimizer, 4, *((0.05, 5e-4) if optimizer == "sgd" else (0.01, 0.0)))
    assert ours.tolist() == pytest.approx(phi.tolist(), abs=1e-7)


def test_fish_makes_one_step_per_group_and_follows_them_in_part() -> None:
    """golden 'fish_step' as two groups: risks of slopes w and 2 (w − 3) from w = 1, steps of 0.1."""
    root = torch.tensor([0.5, 1.0], dtype=torch.float64).sqrt()  # (√½ φ)² has the slope φ, (φ − 3)² the slope 2 (φ − 3)
    targets = torch.tensor([0.0, 3.0], dtype=torch.float64)
    half, one = torch.tensor([0.5, 0.5]), torch.ones(1)
    of = HeadMixture(root.view(2, 1, 1), targets, torch.tensor([0, 1]), half, one, "fish", 0.05)
    assert of.descend("sgd", 1, 0.1, meta_lr=1.0).tolist() == pytest.approx([1.32], rel=1e-12)
    assert of.descend("sgd", 1, 0.1, meta_lr=0.5).tolist() == pytest.approx([1.16], rel=1e-12)


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
    assert float(fish_step(w, gradients, stepping(0.1), meta_lr=1.0)) == pytest.approx(1.32, rel=1e-12)
    assert float(fish_step(w, gradients, stepping(0.1), meta_lr=0.5)) == pytest.approx(1.16, rel=1e-12)


def test_small_sequential_steps_settle_near_the_optimum_of_the_penalty() -> None:
    """Steps of size α in both orders descend on R − α(G − 1)/4 · (mean inner product), up to α²."""
    groups, step = 3, 0.2
    lam = step * (groups - 1) / 4
    of = problem(9, groups=groups, penalty="fish", lam=lam)
    of = HeadMixture(of.predictions, of.targets, of.groups, torch.ones(groups) / groups, of.centre, "fish", lam)
    by_group = [lambda at, g=g: of.group_gradients(at)[g] for g in range(groups)]
    phi = of.centre
    for _ in range(600):
        phi = (fish_step(phi, by_group, stepping(step), 1.0) + fish_step(phi, by_group[::-1], stepping(step), 1.0)) / 2
    penalised, plain = of.solve().x, problem_without_penalty(of).solve().x
    assert float((phi - penalised).norm()) < 0.35 * float((phi - plain).norm())


def stepping(lr: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda at, gradient: at - lr * gradient


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
