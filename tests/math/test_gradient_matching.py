import math

import pytest
import torch
from scipy.optimize import minimize

from farfield.math import Matching, matching_direction, weighted_mean

D = torch.tensor([[1.0, 0.2, 0.0, 0.5], [-0.3, 0.8, 0.1, 0.4], [0.1, -0.6, 0.9, 0.3]], dtype=torch.float64)
P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
WITH_IDLE = torch.tensor([[1.0, 0.0], [0.8, 0.1], [0.0, 0.0]], dtype=torch.float64)


def _close(actual: torch.Tensor, expected: list[float], rtol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=rtol, atol=1e-9 * rtol)


def _random(clients: int, size: int, seed: int, common: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shared = common * torch.randn(1, size, generator=generator, dtype=torch.float64)
    return shared + torch.randn(clients, size, generator=generator, dtype=torch.float64)


def _objective(updates: torch.Tensor, gamma: torch.Tensor, kappa: float) -> float:
    mean, combined = updates.mean(dim=0), gamma @ updates
    return float(combined @ mean + kappa * mean.norm() * combined.norm())


def _magnitude(updates: torch.Tensor, matching: Matching, kappa: float) -> float:
    """The size of the terms that make up the objective, against which rounding is to be judged."""
    updates = updates.double()
    return float((1 + kappa) * updates.mean(dim=0).norm() * (matching.gamma @ updates.norm(dim=1)))


def _assert_optimal(updates: torch.Tensor, matching: Matching, kappa: float, relative: float = 1e-10) -> None:
    """Γ is on the simplex, and the direction's worst inner product attains the objective: strong duality."""
    scale = _magnitude(updates, matching, kappa)
    assert bool((matching.gamma >= 0).all())
    assert float(matching.gamma.sum()) == pytest.approx(1.0, abs=1e-12)
    assert 0.0 <= matching.gap <= relative * scale
    assert matching.objective == pytest.approx(_objective(updates, matching.gamma, kappa), abs=1e-12 * scale)
    worst = float((updates @ matching.direction).min())
    assert worst == pytest.approx(matching.objective, abs=relative * scale)
    distance = (matching.direction - updates.mean(dim=0)).norm()
    assert float(distance) == pytest.approx(kappa * float(updates.mean(dim=0).norm()), rel=1e-9)


def test_three_clients_match_the_golden_numbers() -> None:
    matching = matching_direction(D, kappa=0.5)
    _close(matching.gamma, [0.0, 0.6806282311854682, 0.31937176881453183], rtol=1e-5)
    assert matching.objective == pytest.approx(0.4603454066316457, rel=1e-9)
    _close(
        matching.direction,
        [0.18655153112281186, 0.29745977013717184, 0.49867736752465264, 0.5711882827655128],
        rtol=1e-5,
    )
    assert float((D @ matching.direction).min()) == pytest.approx(0.4603454066316457, rel=1e-9)
    assert matching.gap <= 1e-12


def test_sample_weights_enter_through_the_federations_own_step() -> None:
    matching = matching_direction(D, P, kappa=0.5)
    _close(matching.gamma, [0.0, 0.5595836065579788, 0.44041639344202116], rtol=1e-5)
    assert matching.objective == pytest.approx(0.4448022689094672, rel=1e-9)
    _close(
        matching.direction,
        [0.36173257703017764, 0.321114925104914, 0.45936410887085566, 0.6262342276187595],
        rtol=1e-5,
    )


def test_weighing_the_updates_first_reproduces_the_published_formula() -> None:
    matching = matching_direction(P.unsqueeze(1) * D, kappa=0.5, rescale="1+kappa^2")
    _close(matching.gamma, [0.0, 0.3397253738470015, 0.6602746261529985], rtol=1e-5)
    assert matching.objective == pytest.approx(0.03557585343766878, rel=1e-9)
    _close(
        matching.direction,
        [0.10437701940567845, 0.06002983004675522, 0.13244239117146023, 0.16228486112529505],
        rtol=1e-5,
    )


def test_the_published_loop_matches_its_golden_numbers() -> None:
    matching = matching_direction(D, kappa=0.5, solver="paper", rescale="1+kappa^2")
    _close(matching.gamma, [0.0035388029591784565, 0.6742734543816492, 0.3221877426591723])
    _close(matching.direction, [0.15102242438429908, 0.23643912245933968, 0.40039890811424, 0.4577505334544497])
    # The best of its 21 objectives, which are scaled and smoothed by the code's 1e-4.
    scale = float((D.square().sum(dim=1) + 1e-4).sqrt().mean()) ** 2
    gram = D @ D.T / scale
    square = float(matching.gamma @ gram @ matching.gamma) + 1e-4
    best = float(matching.gamma @ gram.mean(dim=1)) + 0.5 * math.sqrt((float(gram.mean()) + 1e-4) * square)
    assert best == pytest.approx(0.4019780887884947, rel=1e-9)


def test_the_published_loop_on_weighted_updates_and_with_an_idle_client() -> None:
    weighted = matching_direction(P.unsqueeze(1) * D, kappa=0.5, solver="paper", rescale="1+kappa^2")
    _close(weighted.gamma, [4.729527536461642e-09, 0.3396915153756006, 0.6603084798948718])
    _close(
        weighted.direction,
        [0.10438336020665524, 0.06002206524966319, 0.13241468606215417, 0.16226452730245897],
    )
    idle = matching_direction(WITH_IDLE, kappa=0.5, solver="paper", rescale="1+kappa^2")
    _close(idle.direction, [0.48000000000015197, 0.026666666666685664])


@pytest.mark.parametrize("clients", [2, 3, 5, 20, 60])
@pytest.mark.parametrize("kappa", [0.05, 0.5, 0.95])
def test_the_worst_inner_product_attains_the_objective(clients: int, kappa: float) -> None:
    for seed, size in enumerate((4, 30, 400)):
        updates = _random(clients, size, seed)
        _assert_optimal(updates, matching_direction(updates, kappa=kappa), kappa)


@pytest.mark.parametrize("kappa", [0.25, 0.75])
def test_more_than_a_hundred_clients(kappa: float) -> None:
    for size, common in ((40, 1.0), (40, 0.2), (1000, 1.0), (1000, 0.0)):
        updates = _random(130, size, seed=1, common=common)
        _assert_optimal(updates, matching_direction(updates, kappa=kappa), kappa)


def test_the_optimum_agrees_with_a_general_purpose_solver() -> None:
    for seed in range(4):
        updates = _random(6, 9, seed)
        found = minimize(
            lambda gamma, updates=updates: _objective(updates, torch.tensor(gamma), 0.5),
            [1 / 6] * 6,
            method="SLSQP",
            bounds=[(0.0, 1.0)] * 6,
            constraints={"type": "eq", "fun": lambda gamma: gamma.sum() - 1.0},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        matching = matching_direction(updates, kappa=0.5)
        assert matching.objective == pytest.approx(found.fun, rel=1e-7)
        assert matching.objective <= found.fun + 1e-12


def test_the_certificate_bounds_every_other_gamma() -> None:
    updates = _random(8, 20, seed=3)
    matching = matching_direction(updates, kappa=0.5)
    gammas = torch.distributions.Dirichlet(torch.full((8,), 0.3, dtype=torch.float64)).sample((200,))
    for gamma in gammas:
        assert _objective(updates, gamma, 0.5) >= matching.objective - matching.gap - 1e-12


def test_the_exact_solver_beats_the_published_loop_with_many_clients() -> None:
    updates = _random(100, 200, seed=4)
    exact, paper = (matching_direction(updates, kappa=0.5, solver=solver) for solver in ("exact", "paper"))
    assert exact.objective < paper.objective
    # The loop's gap is honest: the true optimum lies within it.
    assert paper.objective - paper.gap <= exact.objective


def test_the_worst_client_gains_over_plain_averaging() -> None:
    updates = _random(10, 50, seed=5, common=0.3)
    mean = updates.mean(dim=0)
    direction = matching_direction(updates, kappa=0.5).direction
    assert float((updates @ direction).min()) > float((updates @ mean).min())


def test_radius_zero_gives_the_weighted_mean_to_the_bit() -> None:
    updates = _random(4, 33, seed=6).float()
    weights = torch.tensor([1.0, 5.0, 2.0, 2.0])
    matching = matching_direction(updates, weights, kappa=0.0)
    assert torch.equal(matching.direction, weighted_mean(updates, weights))
    assert matching.direction.dtype == torch.float32
    inner = updates.double() @ matching.direction.double()
    assert matching.objective == pytest.approx(float(inner.min()), rel=1e-6)
    assert matching.gap == 0.0


@pytest.mark.parametrize("kappa", [0.25, 1.0, 3.0])
def test_identical_clients_and_one_client_speed_up_by_one_plus_kappa(kappa: float) -> None:
    update = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for clients in (1, 2, 7, 100):
        updates = update.repeat(clients, 1)
        matching = matching_direction(updates, kappa=kappa)
        _close(matching.direction, [1.0 + kappa, 2.0 * (1.0 + kappa)])
        _close(matching_direction(updates, kappa=kappa, rescale="1+kappa").direction, [1.0, 2.0])
        squared = (1.0 + kappa) / (1.0 + kappa**2)
        _close(matching_direction(updates, kappa=kappa, rescale="1+kappa^2").direction, [squared, 2 * squared])
        assert matching.objective == pytest.approx(5.0 * (1.0 + kappa), rel=1e-9)
        assert matching.gap <= 1e-12


def test_an_idle_client_takes_all_weight_and_leaves_the_mean() -> None:
    matching = matching_direction(WITH_IDLE, kappa=0.5)
    _close(matching.gamma, [0.0, 0.0, 1.0])
    _close(matching.direction, [0.6, 0.1 / 3])
    assert matching.objective == 0.0
    assert matching.gap == 0.0


def test_a_trace_of_movement_counts_as_idle() -> None:
    updates = WITH_IDLE.clone()
    updates[2] = torch.tensor([-1e-18, 1e-18])
    _close(matching_direction(updates, kappa=0.5).direction, [0.6, 0.1 / 3])


def test_an_idle_client_among_conflicting_ones_is_certified_too() -> None:
    # The second client opposes the mean, though not by more than the radius can mend.
    updates = torch.tensor([[1.0, 0.0], [-0.2, 1.0], [0.0, 0.0], [1.0, -0.8]], dtype=torch.float64)
    assert float((updates @ updates.mean(dim=0)).min()) < 0.0
    matching = matching_direction(updates, kappa=0.5)
    assert float(matching.gamma[2]) == 1.0
    assert matching.objective == 0.0
    assert matching.gap <= 1e-14
    assert torch.equal(matching.direction, weighted_mean(updates, torch.ones(4)))


def test_an_idle_client_is_left_out_where_others_oppose_the_mean_strongly() -> None:
    updates = torch.tensor([[3.0, 0.0], [-1.0, 0.1], [0.0, 0.0]], dtype=torch.float64)
    matching = matching_direction(updates, kappa=0.5)
    assert matching.objective < 0.0
    assert float(matching.gamma[2]) == 0.0
    _assert_optimal(updates, matching, 0.5)


def test_nobody_moving_moves_nothing() -> None:
    matching = matching_direction(torch.zeros(3, 4), kappa=0.5)
    assert torch.equal(matching.direction, torch.zeros(4))
    assert matching.objective == 0.0
    assert matching.gap == 0.0


def test_two_conflicting_clients_on_a_line_have_a_closed_form() -> None:
    matching = matching_direction(torch.tensor([[1.0], [-0.5]], dtype=torch.float64), kappa=0.5)
    _close(matching.gamma, [0.0, 1.0])
    _close(matching.direction, [0.125])
    assert matching.objective == pytest.approx(-0.0625, rel=1e-9)


@pytest.mark.parametrize("kappa", [1.0, 1.5, 4.0])
def test_a_radius_of_one_or_more_is_certified_whether_or_not_updates_can_cancel(kappa: float) -> None:
    apart = _random(5, 40, seed=7, common=3.0)
    _assert_optimal(apart, matching_direction(apart, kappa=kappa), kappa)
    around_zero = _random(12, 3, seed=8, common=0.2)
    matching = matching_direction(around_zero, kappa=kappa)
    scale = _magnitude(around_zero, matching, kappa)
    assert matching.objective == pytest.approx(0.0, abs=1e-10 * scale)
    assert matching.gap <= 1e-10 * scale


def test_updates_that_cancel_within_a_small_radius_fall_back_to_the_mean() -> None:
    # The first two are opposite and all others lie on one side of them: zero is on the edge of the hull.
    updates = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.1, 1.0], [0.2, 1.5]], dtype=torch.float64)
    matching = matching_direction(updates, kappa=0.5)
    scale = _magnitude(updates, matching, 0.5)
    assert matching.objective == pytest.approx(0.0, abs=1e-8 * scale)
    assert matching.gap <= 1e-8 * scale
    torch.testing.assert_close(matching.direction, updates.mean(dim=0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [1e-150, 1e-20, 1e-6, 1e12, 1e150])
def test_the_answer_scales_with_the_updates(scale: float) -> None:
    updates = _random(7, 25, seed=9)
    plain, scaled = matching_direction(updates), matching_direction(scale * updates)
    torch.testing.assert_close(scaled.gamma, plain.gamma, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(scaled.direction / scale, plain.direction, rtol=1e-8, atol=1e-10)
    assert scaled.objective == pytest.approx(scale * (scale * plain.objective), rel=1e-9)


def test_float32_updates_of_any_usual_size_are_solved_to_the_same_accuracy() -> None:
    for scale in (1e-12, 1e-3, 1.0, 1e15):
        updates = (scale * _random(9, 60, seed=10)).float()
        matching = matching_direction(updates, kappa=0.5)
        assert matching.gap <= 1e-10 * _magnitude(updates, matching, 0.5)
        worst = float((updates.double() @ matching.direction.double()).min())
        assert worst == pytest.approx(matching.objective, rel=1e-5)


@pytest.mark.parametrize("spread", [1e-2, 1e-5, 1e-8, 1e-12])
def test_nearly_collinear_clients_are_certified(spread: float) -> None:
    for clients in (3, 30):
        base = _random(1, 50, seed=11)
        updates = base + spread * _random(clients, 50, seed=12)
        _assert_optimal(updates, matching_direction(updates, kappa=0.5), 0.5)


def test_clients_of_very_different_length_and_duplicates_are_certified() -> None:
    updates = _random(24, 60, seed=13) * torch.logspace(-6, 2, 24, dtype=torch.float64).unsqueeze(1)
    _assert_optimal(updates, matching_direction(updates, kappa=0.5), 0.5)
    twice = _random(10, 60, seed=14).repeat(3, 1)
    _assert_optimal(twice, matching_direction(twice, kappa=0.5), 0.5)


def test_the_order_of_the_clients_does_not_matter() -> None:
    updates = _random(15, 40, seed=15)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    plain, shuffled = matching_direction(updates), matching_direction(updates[order])
    torch.testing.assert_close(shuffled.direction, plain.direction, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(shuffled.gamma, plain.gamma[order], rtol=1e-7, atol=1e-10)


def test_a_reference_replaces_the_mean_of_the_updates() -> None:
    updates = _random(5, 20, seed=16)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    mean = weighted_mean(updates, weights)
    by_weights, by_reference = matching_direction(updates, weights), matching_direction(updates, reference=mean)
    torch.testing.assert_close(by_reference.direction, by_weights.direction, rtol=1e-9, atol=1e-12)
    other = torch.randn(20, generator=torch.Generator().manual_seed(17), dtype=torch.float64)
    matching = matching_direction(updates, kappa=0.5, reference=other)
    assert float((matching.direction - other).norm()) == pytest.approx(0.5 * float(other.norm()), rel=1e-9)
    assert float((updates @ matching.direction).min()) == pytest.approx(matching.objective, rel=1e-9)


def test_wide_updates_are_handled_block_by_block() -> None:
    updates = _random(3, 150_001, seed=18)
    _assert_optimal(updates, matching_direction(updates, kappa=0.5), 0.5)


def test_no_gradient_leaks_into_the_clients() -> None:
    updates = _random(3, 5, seed=19).requires_grad_()
    for solver in ("exact", "paper"):
        assert not matching_direction(updates, solver=solver).direction.requires_grad


def test_the_same_updates_give_the_same_bits() -> None:
    updates = _random(20, 100, seed=20)
    first, second = matching_direction(updates), matching_direction(updates.clone())
    assert torch.equal(first.direction, second.direction)
    assert torch.equal(first.gamma, second.gamma)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kappa": -0.1}, "kappa"),
        ({"kappa": math.inf}, "kappa"),
        ({"solver": "newton"}, "'newton'"),
        ({"rescale": "kappa"}, "rescale"),
        ({"weights": torch.zeros(3)}, "not all zero"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matching_direction(D, **options)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_updates_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        matching_direction(torch.tensor([[1.0, value], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="reference must be finite"):
        matching_direction(torch.eye(2), reference=torch.tensor([value, 0.0]))
    with pytest.raises(ValueError, match="non-empty"):
        matching_direction(torch.zeros(0, 3))
