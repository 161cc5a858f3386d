import math

import pytest
import torch

from farfield.math import GeometricAccumulator, weighted_geometric_mean, without_rounding_noise

# Rows are clients, columns coordinates; the last two reach from 1e-30 to 1e8.
GRADIENTS = torch.tensor(
    [
        [2.0, -2.0, 2.0, 2.0, -2.0, 4.0, 0.0, 1e-30, 1e-08],
        [8.0, -8.0, 8.0, 0.0, 0.0, 0.0, 0.0, 1e-30, 1e8],
        [4.0, -4.0, -3.0, 8.0, -8.0, 0.0, 0.0, -1e-30, 1.0],
        [1.0, -1.0, -27.0, 4.0, -4.0, 0.0, 0.0, 1e-30, 1.0],
    ],
    dtype=torch.float64,
)
PAPER = [2.82842712474619, -2.82842712474619, -2.5, 0.0, 0.0, 0.0, 0.0, 5e-31, 1.0]
NEITHER = [2.82842712474619, -2.82842712474619, -2.5, 3.0, -3.0, 1.0, 0.0, 5e-31, 1.0]


def _naive(column: list[float], zeros: str) -> float:
    """The definition with products of Python floats."""
    if zeros == "published":
        positive, negative = [g + 1e-10 for g in column if g > 0], [abs(g) + 1e-10 for g in column if g <= 0]
    elif zeros == "paper":
        positive, negative = [g for g in column if g >= 0], [g for g in column if g <= 0]
    else:
        positive, negative = [g for g in column if g > 0], [g for g in column if g < 0]
    sides = []
    for members in (positive, negative):
        product = math.prod(abs(g) for g in members)
        sides.append(len(members) / len(column) * product ** (1 / len(members)) if members else 0.0)
    return sides[0] - sides[1]


@pytest.mark.parametrize(("zeros", "expected"), [("paper", PAPER), ("neither", NEITHER)])
def test_both_treatments_of_zeros_match_the_golden_numbers(zeros: str, expected: list[float]) -> None:
    mean = weighted_geometric_mean(GRADIENTS, zeros=zeros)
    torch.testing.assert_close(mean, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([4.0, 0.0, 0.0, 0.0], 1.0),
        ([-4.0, 0.0, 0.0, 0.0], -4.4721359549995794e-08),  # (4e-30)^¼
        ([0.0, 0.0, 0.0], -1e-10),
        ([1e-12, 1e-12], 1.01e-10),  # what is below the epsilon is floored
        ([1.0, 4.0, -9.0], -5 / 3),
    ],
)
def test_the_published_code_counts_zeros_as_negative_and_adds_an_epsilon(column: list[float], expected: float) -> None:
    for dtype, rel in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        value = weighted_geometric_mean(torch.tensor(column, dtype=dtype).unsqueeze(1), "published")
        assert float(value) == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize("rows", [1, 6, 13])
def test_the_published_rule_does_not_care_how_rows_are_cut_and_passes_nan_on(rows: int) -> None:
    grads = torch.randn(rows, 30, generator=torch.Generator().manual_seed(8))
    grads[:, :10] = 0.0
    whole = weighted_geometric_mean(grads, "published")
    accumulator = GeometricAccumulator(30, "published")
    for row in grads:
        accumulator.add(row)
    assert torch.equal(accumulator.result().float(), whole)
    grads[0, 3] = float("nan")
    assert weighted_geometric_mean(grads, "published").isnan().nonzero().tolist() == [[3]]


def test_entries_below_a_few_roundings_of_their_layer_become_zeros_and_no_others() -> None:
    tiny = 2.0**-23  # one rounding of 1 in float32; the limit is 256 of them
    row = torch.tensor([1.0, 255 * tiny, -257 * tiny, 1e-3, 1e-3 * 255 * tiny, 1e-3 * 257 * tiny, 255 * tiny, -tiny])
    layers = [slice(0, 3), slice(3, 6), slice(6, 8)]  # the last is noise as a whole
    expected = [1.0, 0.0, float(row[2]), float(row[3]), 0.0, float(row[5]), 0.0, 0.0]
    before = row.clone()
    assert without_rounding_noise(row, layers).tolist() == expected
    assert torch.equal(row, before)
    both = without_rounding_noise(torch.stack([row, 1e-20 * row]), layers)
    assert both[0].tolist() == expected
    assert both[1].tolist() == pytest.approx([1e-20 * e for e in expected], rel=1e-6)


def test_what_is_noise_depends_on_the_precision() -> None:
    row = torch.tensor([1.0, 1e-7], dtype=torch.float64)
    assert without_rounding_noise(row, [slice(0, 2)]).tolist() == [1.0, 1e-7]
    assert without_rounding_noise(row.float(), [slice(0, 2)]).tolist() == [1.0, 0.0]


def test_the_papers_treatment_of_zeros_is_the_default() -> None:
    assert torch.equal(weighted_geometric_mean(GRADIENTS), weighted_geometric_mean(GRADIENTS, zeros="paper"))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1.0, 4.0], 2.0),
        ([-1.0, -4.0], -2.0),
        ([1.0, 4.0, -9.0], -1.6666666666666667),
        ([3.0], 3.0),
        ([-5.0], -5.0),
        ([1.0, -1.0], 0.0),
        ([0.5, 2.0, -2.0, -8.0], -1.5),
    ],
)
def test_hand_computed_columns(column: list[float], expected: float) -> None:
    value = weighted_geometric_mean(torch.tensor(column, dtype=torch.float64).unsqueeze(1))
    assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("zeros", ["paper", "neither"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_changing_every_sign_changes_the_sign_of_the_mean_to_the_bit(zeros: str, dtype: torch.dtype) -> None:
    grads = torch.randn(17, 500, generator=torch.Generator().manual_seed(0), dtype=dtype)
    grads[torch.rand(17, 500, generator=torch.Generator().manual_seed(1)) < 0.05] = 0.0
    assert torch.equal(weighted_geometric_mean(-grads, zeros), -weighted_geometric_mean(grads, zeros))


@pytest.mark.parametrize("zeros", ["paper", "neither", "published"])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("rows", [5, 6, 13])
def test_it_agrees_with_the_definition_by_products(rows: int, dtype: torch.dtype, rtol: float, zeros: str) -> None:
    grads = torch.randn(rows, 200, generator=torch.Generator().manual_seed(2), dtype=dtype)
    grads[torch.rand(rows, 200, generator=torch.Generator().manual_seed(3)) < 0.1] = 0.0
    expected = torch.tensor([_naive(column.tolist(), zeros) for column in grads.T], dtype=torch.float64)
    # A mean is the difference of two sides, and what is left of them has the rounding of the larger one.
    torch.testing.assert_close(weighted_geometric_mean(grads, zeros).double(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("size", [2.0**-149, float(torch.finfo(torch.float32).max)])
@pytest.mark.parametrize("rows", [1, 6, 13])
def test_the_smallest_and_largest_float32_have_a_mean(rows: int, size: float) -> None:
    grads = torch.full((rows, 3), size)
    grads[:, 1] *= -1.0
    grads[::2, 2] *= -1.0
    accumulator = GeometricAccumulator(size=3)
    accumulator.add(grads)
    minority = rows - 2 * ((rows + 1) // 2)
    expected = torch.tensor([size, -size, size * minority / rows], dtype=torch.float64)
    torch.testing.assert_close(accumulator.result(), expected, rtol=1e-12, atol=size * 1e-12)


def test_products_that_underflow_in_float32_keep_their_size() -> None:
    grads = torch.full((12, 1), 1e-30)
    torch.testing.assert_close(weighted_geometric_mean(grads), torch.tensor([1e-30]), rtol=1e-6, atol=0)


def test_identical_clients_give_back_their_gradient() -> None:
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    mean = weighted_geometric_mean(gradient.expand(7, -1))
    torch.testing.assert_close(mean, gradient, rtol=1e-14, atol=0)


def test_disagreement_in_size_shrinks_the_mean_below_the_arithmetic_one() -> None:
    grads = torch.rand(5, 100, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.01
    assert bool((weighted_geometric_mean(grads) < grads.mean(dim=0)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_accumulator_does_not_care_how_rows_are_cut_into_batches(dtype: torch.dtype) -> None:
    grads = torch.randn(250, 40, generator=torch.Generator().manual_seed(6), dtype=dtype)
    whole = GeometricAccumulator(size=40)
    whole.add(grads)
    accumulator = GeometricAccumulator(size=40)
    for batch in grads.split([1, 100, 49, 100]):
        accumulator.add(batch)
        accumulator.result()  # asking in between changes nothing
    assert accumulator.rows == 250
    assert torch.equal(accumulator.result(), whole.result())
    backwards = GeometricAccumulator(size=40)
    for row in grads.flip(0):
        backwards.add(row)
    torch.testing.assert_close(backwards.result(), whole.result(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_column_has_its_mean_however_many_there_are(dtype: torch.dtype) -> None:
    columns = torch.randn(7, 40_000, generator=torch.Generator().manual_seed(7), dtype=dtype)
    mean = weighted_geometric_mean(columns)
    for some in (slice(0, 50), slice(16_350, 16_400), slice(39_950, 40_000)):
        torch.testing.assert_close(mean[some], weighted_geometric_mean(columns[:, some]), rtol=1e-12, atol=0)


def test_a_nan_is_passed_on_instead_of_vanishing() -> None:
    grads = torch.tensor([[1.0, 2.0], [float("nan"), 8.0]])
    mean = weighted_geometric_mean(grads)
    assert bool(mean[0].isnan())
    assert float(mean[1]) == pytest.approx(4.0)


def test_unknown_options_and_empty_means_are_refused() -> None:
    with pytest.raises(ValueError, match="'both'"):
        weighted_geometric_mean(torch.ones(2, 2), zeros="both")
    with pytest.raises(ValueError, match="at least one row"):
        GeometricAccumulator(size=3).result()
