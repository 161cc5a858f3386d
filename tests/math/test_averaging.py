import pytest
import torch

from farfield.math import ema, weighted_mean

PARAMETERS = torch.tensor([[1.0, 2.0], [3.0, -2.0], [0.0, 1.0]], dtype=torch.float64)


def test_sample_weighted_and_uniform_means_match_the_golden_numbers() -> None:
    weighted = weighted_mean(PARAMETERS, torch.tensor([10.0, 30.0, 60.0]))
    uniform = weighted_mean(PARAMETERS, torch.ones(3))
    torch.testing.assert_close(weighted, torch.tensor([1.0, 0.2], dtype=torch.float64), rtol=1e-9, atol=0)
    expected = torch.tensor([1.3333333333333333, 0.3333333333333333], dtype=torch.float64)
    torch.testing.assert_close(uniform, expected, rtol=1e-9, atol=0)


def test_scaling_all_weights_changes_nothing() -> None:
    rows = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(weighted_mean(rows, weights), weighted_mean(rows, 1024 * weights))


def test_one_client_is_returned_to_the_bit() -> None:
    row = torch.randn(1, 100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(weighted_mean(row, torch.tensor([3.7])), row[0])


def test_a_client_with_weight_zero_does_not_count() -> None:
    rows = torch.tensor([[1.0, 2.0], [1e30, -1e30]])
    assert torch.equal(weighted_mean(rows, torch.tensor([1.0, 0.0])), rows[0])


def test_float32_rows_are_accumulated_in_float64() -> None:
    rows = torch.tensor([[1e8], [1.0], [-1e8]])
    mean = weighted_mean(rows, torch.ones(3))
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean, torch.tensor([1 / 3]), rtol=1e-6, atol=0)


def test_it_agrees_with_a_loop_over_python_floats() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    weights = torch.rand(5, generator=generator, dtype=torch.float64)
    total = float(weights.sum())
    expected = [sum(float(weights[c]) / total * float(rows[c, j]) for c in range(5)) for j in range(3)]
    torch.testing.assert_close(
        weighted_mean(rows, weights), torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0
    )


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    rows = torch.randn(9, 100_003, generator=torch.Generator().manual_seed(3))
    weights = torch.arange(1.0, 10.0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = weighted_mean(rows, weights)
        torch.set_num_threads(4)
        four = weighted_mean(rows, weights)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, four)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -0.5], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_weights_that_cannot_be_normalised_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="non-negative"):
        weighted_mean(torch.ones(2, 3), torch.tensor(weights))


def test_a_wrong_number_of_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="2 clients"):
        weighted_mean(torch.ones(2, 3), torch.ones(3))


def test_moving_average_starts_from_zero_without_bias_correction() -> None:
    average = None
    series = []
    for value in (1.0, 2.0, -1.0, 4.0):
        average = ema(average, torch.tensor([value], dtype=torch.float64), upsilon=0.95)
        series.append(float(average))
    assert series == pytest.approx([0.05, 0.14750000000000002, 0.090125, 0.28561875000000003], rel=1e-9)


def test_moving_average_limits_are_the_new_and_the_old_value() -> None:
    old, new = torch.tensor([3.0]), torch.tensor([5.0])
    assert torch.equal(ema(old, new, upsilon=0.0), new)
    assert torch.equal(ema(old, new, upsilon=1.0), old)
    assert torch.equal(ema(None, new, upsilon=0.25), ema(torch.zeros(1), new, upsilon=0.25))
    with pytest.raises(ValueError, match="upsilon"):
        ema(old, new, upsilon=1.5)
