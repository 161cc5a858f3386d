import pytest
import torch
from torch.nn import functional as F

from farfield.math import fish_inner_product, fishr_penalty, group_dro_weights, irm_penalty, vrex_penalty

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.3, 0.2, -0.4], [1.0, 1.5, -0.5], [-0.2, 0.4, 0.9]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 2])
LOSSES = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def _scale_gradient(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The derivative by the dummy scale through autograd, as IRM's definition has it."""
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    if logits.ndim == 1:
        loss = F.binary_cross_entropy_with_logits(scale * logits, labels)
    else:
        loss = F.cross_entropy(scale * logits, labels)
    (gradient,) = torch.autograd.grad(loss, scale, create_graph=True)
    return gradient


def test_irm_penalties_match_the_golden_numbers() -> None:
    assert float(irm_penalty(LOGITS, LABELS)) == pytest.approx(0.018047846116714523, rel=1e-9)
    assert float(irm_penalty(LOGITS, LABELS, halves=True)) == pytest.approx(-0.030590847311732176, rel=1e-9)


def test_irm_penalty_and_its_gradient_agree_with_double_backward() -> None:
    generator = torch.Generator().manual_seed(0)
    for labels, shape in (
        (torch.randint(4, (9,), generator=generator), (9, 4)),
        (torch.rand(9).round().double(), (9,)),
    ):
        logits = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        ours, theirs = irm_penalty(logits, labels), _scale_gradient(logits, labels).square()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
        halves = _scale_gradient(logits[0::2], labels[0::2]) * _scale_gradient(logits[1::2], labels[1::2])
        torch.testing.assert_close(irm_penalty(logits, labels, halves=True), halves, rtol=1e-12, atol=1e-15)
        (ours,) = torch.autograd.grad(ours, logits)
        (theirs,) = torch.autograd.grad(theirs, logits)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("halves", [False, True])
def test_irm_penalty_agrees_with_finite_differences(halves: bool) -> None:
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: irm_penalty(a, LABELS, halves), (logits,))


def test_irm_penalty_vanishes_where_the_best_scale_is_one() -> None:
    # σ(ln 3) = 3/4 is the share of positive labels: the logits are calibrated.
    logits = torch.full((4,), 3.0, dtype=torch.float64).log()
    labels = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert irm_penalty(logits, labels).item() == pytest.approx(0.0, abs=1e-30)
    assert irm_penalty(2.0 * logits, labels).item() > 1e-3
    assert irm_penalty(0.5 * logits, labels).item() > 1e-3


def test_the_two_halves_need_two_samples() -> None:
    with pytest.raises(ValueError, match="two samples"):
        irm_penalty(LOGITS[:1], LABELS[:1], halves=True)


def test_vrex_penalty_matches_the_golden_numbers() -> None:
    assert float(vrex_penalty(LOSSES)) == pytest.approx(0.38888888888888884, rel=1e-9)
    within = vrex_penalty(F.cross_entropy(LOGITS, LABELS, reduction="none"))
    assert float(within) == pytest.approx(0.24663988445992485, rel=1e-9)


def test_vrex_penalty_is_zero_for_equal_risks_and_differentiable() -> None:
    assert float(vrex_penalty(torch.full((4,), 1.7))) == 0.0
    assert float(vrex_penalty(torch.tensor([3.0]))) == 0.0
    assert torch.autograd.gradcheck(vrex_penalty, (LOSSES.clone().requires_grad_(),))


def test_group_dro_weights_match_the_golden_numbers() -> None:
    q = group_dro_weights(torch.ones(3, dtype=torch.float64), LOSSES, eta=0.01)
    expected = torch.tensor([0.3311120586539059, 0.3327717647547079, 0.33611617659138615], dtype=torch.float64)
    torch.testing.assert_close(q, expected, rtol=1e-9, atol=0)
    assert float(q @ LOSSES) == pytest.approx(1.1705601472644331, rel=1e-9)


def test_group_dro_weights_survive_huge_losses_and_carry_no_gradient() -> None:
    losses = torch.tensor([1.0, 1e6], requires_grad=True)
    q = group_dro_weights(torch.ones(2), losses, eta=1.0)
    assert torch.equal(q, torch.tensor([0.0, 1.0]))
    assert not q.requires_grad
    assert torch.equal(group_dro_weights(torch.tensor([0.25, 0.75]), losses, eta=0.0), torch.tensor([0.25, 0.75]))


def test_fish_inner_product_is_the_sum_over_pairs() -> None:
    gradients = torch.randn(5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = sum(float(gradients[i] @ gradients[j]) for i in range(5) for j in range(i + 1, 5))
    assert float(fish_inner_product(gradients)) == pytest.approx(pairs, rel=1e-12)
    short = (gradients.sum(dim=0).square().sum() - gradients.square().sum()) / 2
    assert float(fish_inner_product(gradients)) == pytest.approx(float(short), rel=1e-12)
    assert torch.autograd.gradcheck(fish_inner_product, (gradients.requires_grad_(),))


def test_fish_inner_product_keeps_its_digits_for_nearly_orthogonal_gradients() -> None:
    gradients = torch.tensor([[1e4, 0.0], [1e-4, 1e4]])
    assert float(fish_inner_product(gradients)) == pytest.approx(1.0, rel=1e-6)
    assert float(fish_inner_product(gradients[:1])) == 0.0


def test_fishr_penalty_is_the_spread_around_the_mean() -> None:
    variances = torch.tensor([[1.0, 2.0], [3.0, 2.0], [2.0, 5.0]], dtype=torch.float64)
    # Means 2 and 3, deviations (-1, -1), (1, -1), (0, 2).
    assert float(fishr_penalty(variances, reduction="sum")) == pytest.approx(8.0)
    assert float(fishr_penalty(variances, reduction="mean")) == pytest.approx(8.0 / 3.0)
    assert float(fishr_penalty(variances[:1])) == 0.0
    assert torch.autograd.gradcheck(fishr_penalty, (variances.requires_grad_(),))
    with pytest.raises(ValueError, match="'max'"):
        fishr_penalty(variances, reduction="max")
