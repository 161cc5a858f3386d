"""Robust means against numpy, scipy, a naive Krum, and what their papers promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import trim_mean

from farfield.math import (
    coordinate_median,
    geometric_median,
    krum_order,
    mean_of,
    squared_distances,
    trimmed_mean,
)


def draw(rows: int, columns: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9, 10])
def test_the_median_is_numpys(rows: int) -> None:
    table = draw(rows)
    np.testing.assert_allclose(coordinate_median(table).numpy(), np.median(table.numpy(), axis=0), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("rows", "cut"), [(3, 1), (5, 0), (5, 2), (10, 3)])
def test_the_trimmed_mean_is_scipys(rows: int, cut: int) -> None:
    table = draw(rows)
    expected = trim_mean(table.numpy(), cut / rows + 1e-9, axis=0)
    np.testing.assert_allclose(trimmed_mean(table, cut).numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("cut", [-1, 2, 5])
def test_something_must_be_left_after_trimming(cut: int) -> None:
    with pytest.raises(ValueError, match="of 4 rows"):
        trimmed_mean(draw(4), cut)


def test_distances_are_symmetric_to_the_bit_and_those_of_torch() -> None:
    table = draw(6).float()
    found = squared_distances(table)
    assert torch.equal(found, found.T)
    torch.testing.assert_close(found, torch.cdist(table.double(), table.double()) ** 2, rtol=1e-6, atol=1e-12)


def test_krum_orders_by_the_published_score() -> None:
    table = draw(9).numpy()
    for wrong in (0, 1, 2, 3):
        scores = []
        for i in range(9):
            distances = sorted(float(((table[i] - table[j]) ** 2).sum()) for j in range(9) if j != i)
            scores.append(sum(distances[: 9 - wrong - 2]))
        assert krum_order(torch.from_numpy(table), wrong) == sorted(range(9), key=scores.__getitem__)


@pytest.mark.parametrize(("rows", "wrong"), [(4, 1), (2, 0), (6, 2), (5, -1)])
def test_krum_needs_two_f_and_three_rows(rows: int, wrong: int) -> None:
    with pytest.raises(ValueError, match=r"2f \+ 3"):
        krum_order(draw(rows), wrong)


def test_equal_scores_go_to_the_row_that_is_nearer_to_all_whatever_the_order() -> None:
    """Of three rows with one neighbour each, two are nearest to each other and have the same score."""
    rows = torch.tensor([[0.0], [1.0], [10.0]])
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert float(rows[order][krum_order(rows[order], 0)[0]]) == 1.0


def test_the_mean_of_chosen_rows_is_their_mean() -> None:
    table = draw(5)
    torch.testing.assert_close(mean_of(table, [4, 0]), (table[0] + table[4]) / 2, rtol=0, atol=1e-15)


@pytest.mark.parametrize("rows", [3, 4, 7, 20])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_geometric_median_is_the_minimum_that_scipy_finds(rows: int, weighted: bool) -> None:
    table = draw(rows, 3, seed=rows)
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(1)) + 0.1 if weighted else torch.ones(rows)
    shares = (weights / weights.sum()).double().numpy()

    def cost(point: np.ndarray) -> float:
        return float(shares @ np.linalg.norm(table.numpy() - point, axis=1))

    found = geometric_median(table, weights)
    assert found.gradient <= 1e-10
    best = min(
        (minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-15, "maxiter": 20000})
         for start in (table.mean(0).numpy(), found.point.numpy() + 0.1)),
        key=lambda result: result.fun,
    )  # fmt: skip
    # Where the minimum is one of the rows, the smoothing leaves the point a millionth beside it.
    assert cost(found.point.numpy()) <= best.fun + 1e-6
    np.testing.assert_allclose(found.point.numpy(), best.x, atol=1e-4)


def test_the_fermat_point_of_a_triangle_sees_its_sides_under_equal_angles() -> None:
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    point = geometric_median(corners).point
    towards = torch.nn.functional.normalize(corners - point, dim=1)
    for one in range(3):
        assert float(towards[one] @ towards[(one + 1) % 3]) == pytest.approx(-0.5, abs=1e-8)


def test_a_row_with_half_of_the_weight_is_the_geometric_median() -> None:
    table = draw(4)
    found = geometric_median(table, torch.tensor([6.0, 1.0, 2.0, 1.0])).point
    torch.testing.assert_close(found, table[0], rtol=0, atol=1e-5)


def test_the_geometric_median_scales_and_moves_with_the_rows() -> None:
    table = draw(5)
    plain = geometric_median(table).point
    for scale in (1e-6, 1e6):
        torch.testing.assert_close(geometric_median(table * scale + 3).point, plain * scale + 3, rtol=1e-8, atol=0)


def test_equal_rows_are_their_own_geometric_median() -> None:
    assert torch.equal(geometric_median(torch.ones(3, 4)).point, torch.ones(4))
    assert geometric_median(torch.ones(1, 4) * 2).point.tolist() == [2.0] * 4


@pytest.mark.parametrize("size", [1e3, 1e12])
def test_one_row_of_seven_moves_no_robust_mean_beyond_the_others(size: float) -> None:
    table = draw(7)
    table[3] = -size
    rest = table[[0, 1, 2, 4, 5, 6]]
    low, high = rest.min(dim=0).values, rest.max(dim=0).values
    means = (
        coordinate_median(table),
        trimmed_mean(table, 1),
        table[krum_order(table, 1)[0]],
        mean_of(table, krum_order(table, 1)[:6]),
    )
    for found in means:
        assert bool(((low <= found) & (found <= high)).all())
    # The geometric median may leave the box a little: the far row pulls with a force of one seventh.
    centre = rest.mean(0)
    assert float((geometric_median(table).point - centre).norm()) < 2 * float((rest - centre).norm(dim=1).max())


def test_threads_and_dtypes_change_no_bit_but_those_of_rounding() -> None:
    table = draw(5, 100_000).float()
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = [coordinate_median(table), trimmed_mean(table, 1), table[krum_order(table, 1)[0]]]
            results.append(torch.cat([*found, mean_of(table, krum_order(table, 1)[:3])]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)
    assert results[0].dtype == torch.float32
