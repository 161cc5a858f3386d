import pytest
import torch

from farfield.math import and_mask, masked_mean, sand_mask, sign_agreement, weighted_mean

DELTAS = torch.tensor(
    [
        [0.1, -0.2, 0.3, 0.0, 0.5],
        [0.2, -0.1, -0.3, 0.1, 0.5],
        [0.3, -0.4, 0.2, -0.1, -0.1],
        [0.1, 0.3, 0.1, 0.0, 0.2],
        [0.4, -0.3, -0.1, 0.2, 0.3],
    ],
    dtype=torch.float64,
)
WEIGHTS = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2], dtype=torch.float64)
ENVIRONMENTS = torch.tensor(
    [[1.0, -0.5, 0.2, -2.0], [0.5, -0.1, -0.3, -1.0], [0.8, 0.4, 0.1, -3.0]], dtype=torch.float64
)


def _close(actual: torch.Tensor, expected: list[float], rtol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=rtol, atol=1e-15)


def test_agreement_matches_the_golden_numbers_and_counts_zeros_as_votes() -> None:
    _close(sign_agreement(DELTAS), [1.0, 0.6, 0.2, 0.2, 0.6])


def test_soft_and_hard_fedgma_match_the_golden_numbers() -> None:
    _close(masked_mean(DELTAS, WEIGHTS, tau=0.5), [0.24, -0.16, 0.006, 0.006, 0.22])
    _close(masked_mean(DELTAS, WEIGHTS, tau=0.5, hard=True), [0.24, -0.16, 0.0, 0.0, 0.22])


def test_agreement_equal_to_the_threshold_passes() -> None:
    assert float(masked_mean(DELTAS, WEIGHTS, tau=0.6, hard=True)[1]) == pytest.approx(-0.16)


def test_threshold_zero_and_identical_clients_give_the_plain_mean_to_the_bit() -> None:
    updates = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(masked_mean(updates, WEIGHTS, tau=0.0), weighted_mean(updates, WEIGHTS))
    same = updates[:1].repeat(5, 1)
    assert torch.equal(masked_mean(same, WEIGHTS, tau=1.0), weighted_mean(same, WEIGHTS))


def test_fedgma_agrees_with_a_loop() -> None:
    updates = torch.randn(6, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.arange(1.0, 7.0)
    expected = []
    for column in updates.T.tolist():
        agreement = abs(sum((g > 0) - (g < 0) for g in column)) / 6
        mean = sum(w * g for w, g in zip(range(1, 7), column, strict=True)) / 21
        expected.append(mean if agreement >= 0.4 else agreement * mean)
    _close(masked_mean(updates, weights, tau=0.4), expected, rtol=1e-12)


def test_and_mask_matches_the_golden_numbers() -> None:
    _close(and_mask(ENVIRONMENTS, tau=1.0), [0.7666666666666666, 0.0, 0.0, -2.0])
    _close(and_mask(ENVIRONMENTS, tau=1.0, rescale=True), [1.5333333330266665, 0.0, 0.0, -3.9999999992])


def test_sand_mask_matches_the_golden_numbers() -> None:
    mask = sand_mask(ENVIRONMENTS, tau=0.2, k=0.05) / ENVIRONMENTS.mean(dim=0)
    # The third column's mean is zero up to rounding, so the quotient says nothing there.
    _close(mask[[0, 1, 3]], [0.5591384854927484, 0.03277514188183062, 0.03997868031116358])
    rescaled = sand_mask(ENVIRONMENTS, tau=0.2, k=0.05, rescale=True)
    _close(rescaled, [2.3590929263758813, -0.012024648848262025, 0.0, -0.44002518179044253])


def test_sand_mask_without_variance_is_the_and_mask() -> None:
    same = torch.tensor([[1.0, -2.0, 0.0]]).repeat(4, 1)
    assert torch.equal(sand_mask(same, tau=0.5, k=10.0), same[0])
    assert torch.equal(sand_mask(same[:1], tau=0.5, k=10.0), same[0])
    assert torch.equal(sand_mask(same, tau=1.0, k=10.0), torch.zeros(3))


def test_masks_that_close_everywhere_give_zero_and_not_nan() -> None:
    updates = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert torch.equal(and_mask(updates, tau=1.0, rescale=True), torch.zeros(2))
    assert torch.equal(sand_mask(updates, tau=0.5, k=1.0, rescale=True), torch.zeros(2))


def test_rescaling_keeps_the_mean_when_every_coordinate_passes() -> None:
    updates = torch.rand(3, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(and_mask(updates, tau=1.0, rescale=True), updates.mean(dim=0), rtol=1e-14, atol=0)


@pytest.mark.parametrize("tau", [-0.1, 1.1])
def test_thresholds_outside_the_unit_interval_are_refused(tau: float) -> None:
    with pytest.raises(ValueError, match="tau"):
        masked_mean(DELTAS, WEIGHTS, tau)
    with pytest.raises(ValueError, match="tau"):
        and_mask(DELTAS, tau)
    with pytest.raises(ValueError, match="k must be positive"):
        sand_mask(DELTAS, 0.5, k=0.0)
