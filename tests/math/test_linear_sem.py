import pytest
import torch

from farfield.math.not_called_yet import linear_sem

ALPHA_I = torch.tensor([1.0, 2.0], dtype=torch.float64)
ALPHA_S = torch.tensor([0.5, -1.0], dtype=torch.float64)
SIGMA1 = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
SIGMA2 = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)
SIGMA3 = 0.5


def _close(actual: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-14)


def _moments(sigma1: float, sigma2: float, sigma3: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    """E[xxᵀ], E[xy] and E[y²] of one domain, written out from the model."""
    eye = torch.eye(2, dtype=torch.float64)
    power = sigma1 * float(ALPHA_I @ ALPHA_I) + sigma2
    cross = sigma1 * torch.outer(ALPHA_I, ALPHA_S)
    square = torch.cat(
        [
            torch.cat([sigma1 * eye, cross], dim=1),
            torch.cat([cross.T, power * torch.outer(ALPHA_S, ALPHA_S) + sigma3 * eye], dim=1),
        ]
    )
    return square, torch.cat([sigma1 * ALPHA_I, power * ALPHA_S]), power


def test_solutions_match_the_golden_numbers() -> None:
    erm = linear_sem.erm_solution(ALPHA_I, ALPHA_S, SIGMA2, SIGMA3)
    _close(erm, [0.19047619047619038, 0.3809523809523808, 0.32380952380952355, -0.6476190476190479])
    osa = linear_sem.one_shot_average(ALPHA_I, ALPHA_S, SIGMA2, SIGMA3)
    _close(osa, [0.3922077922077925, 0.784415584415585, 0.24311688311688298, -0.4862337662337661])
    for sigma2, expected in (
        (0.1, [0.8, 1.6, 0.08, -0.16]),
        (1.0, [0.28571428571428575, 0.5714285714285716, 0.2857142857142857, -0.5714285714285714]),
        (4.0, [0.09090909090909094, 0.18181818181818188, 0.36363636363636354, -0.7272727272727273]),
    ):
        _close(linear_sem.local_solution(ALPHA_I, ALPHA_S, sigma2, SIGMA3), expected)


def test_solutions_solve_the_population_normal_equations() -> None:
    domains = [_moments(float(s1), float(s2), SIGMA3) for s1, s2 in zip(SIGMA1, SIGMA2, strict=True)]
    for (square, cross, _), sigma2 in zip(domains, SIGMA2, strict=True):
        local = linear_sem.local_solution(ALPHA_I, ALPHA_S, sigma2, SIGMA3)
        torch.testing.assert_close(local, torch.linalg.solve(square, cross), rtol=1e-10, atol=1e-12)
    sizes = torch.tensor([5.0, 1.0, 2.0], dtype=torch.float64)
    pooled = torch.linalg.solve(
        sum(n * square for n, (square, _, _) in zip(sizes, domains, strict=True)),
        sum(n * cross for n, (_, cross, _) in zip(sizes, domains, strict=True)),
    )
    erm = linear_sem.erm_solution(ALPHA_I, ALPHA_S, SIGMA2, SIGMA3, weights=sizes)
    torch.testing.assert_close(erm, pooled, rtol=1e-10, atol=1e-12)


def test_every_solution_balances_what_it_takes_from_both_kinds_of_features() -> None:
    for w in (
        linear_sem.erm_solution(ALPHA_I, ALPHA_S, SIGMA2, SIGMA3),
        linear_sem.one_shot_average(ALPHA_I, ALPHA_S, SIGMA2, SIGMA3),
    ):
        w_i, w_s = float(w[0] / ALPHA_I[0]), float(w[2] / ALPHA_S[0])
        assert 1 - w_i == pytest.approx(w_s * float(ALPHA_S @ ALPHA_S), rel=1e-12)


def test_true_risks_match_the_golden_numbers_on_both_sides_of_the_crossing() -> None:
    solutions = {
        "erm": linear_sem.erm_solution(ALPHA_I, ALPHA_S, SIGMA2, SIGMA3),
        "osa": linear_sem.one_shot_average(ALPHA_I, ALPHA_S, SIGMA2, SIGMA3),
        "invariant": linear_sem.invariant_solution(ALPHA_I, ALPHA_S),
    }
    golden = {
        "erm": [
            0.2621315192743756, 0.26575963718820983, 0.2802721088435369, 0.29841269841269735,
            0.32380952380952266, 0.3709750566893426, 0.5886621315192713,
        ],
        "osa": [
            0.14776454714117015, 0.16314724236802292, 0.22467802327542685, 0.3015914994096818,
            0.4092703659976369, 0.609245403946705, 1.5322071175577712,
        ],
        "invariant": [0.0, 0.1, 0.5, 1.0, 1.7, 3.0, 9.0],
    }  # fmt: skip
    for name, w in solutions.items():
        for sigma2, expected in zip((0.0, 0.1, 0.5, 1.0, 1.7, 3.0, 9.0), golden[name], strict=True):
            risk = linear_sem.population_risk(w, ALPHA_I, ALPHA_S, 1.5, sigma2, SIGMA3)
            assert float(risk) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_risk_of_any_predictor_agrees_with_the_second_moments() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        w = torch.randn(4, generator=generator, dtype=torch.float64)
        s1, s2, s3 = (torch.rand(3, generator=generator, dtype=torch.float64) + 0.1).tolist()
        square, cross, power = _moments(s1, s2, s3)
        expected = power - 2 * float(w @ cross) + float(w @ square @ w)
        assert float(linear_sem.population_risk(w, ALPHA_I, ALPHA_S, s1, s2, s3)) == pytest.approx(expected, rel=1e-11)


def test_risk_is_differentiable_and_flat_at_the_local_solution() -> None:
    w = linear_sem.local_solution(ALPHA_I, ALPHA_S, 2.0, SIGMA3).requires_grad_()
    linear_sem.population_risk(w, ALPHA_I, ALPHA_S, 1.5, 2.0, SIGMA3).backward()
    torch.testing.assert_close(w.grad, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-14)


def test_one_shot_averaging_leans_more_on_invariant_features_and_lies_closer_to_the_invariant_solution() -> None:
    generator = torch.Generator().manual_seed(1)
    target = linear_sem.invariant_solution(ALPHA_I, ALPHA_S)
    for _ in range(20):
        sigma2 = torch.rand(4, generator=generator, dtype=torch.float64) * 5
        erm = linear_sem.erm_solution(ALPHA_I, ALPHA_S, sigma2, SIGMA3)
        osa = linear_sem.one_shot_average(ALPHA_I, ALPHA_S, sigma2, SIGMA3)
        assert float(erm[:2].norm() / erm[2:].norm()) < float(osa[:2].norm() / osa[2:].norm())
        assert float((erm - target).norm()) > float((osa - target).norm())


def test_equal_domains_make_both_solutions_the_local_one() -> None:
    same = torch.full((3,), 0.7, dtype=torch.float64)
    local = linear_sem.local_solution(ALPHA_I, ALPHA_S, 0.7, SIGMA3)
    torch.testing.assert_close(linear_sem.erm_solution(ALPHA_I, ALPHA_S, same, SIGMA3), local, rtol=1e-14, atol=0)
    torch.testing.assert_close(linear_sem.one_shot_average(ALPHA_I, ALPHA_S, same, SIGMA3), local, rtol=1e-14, atol=0)
