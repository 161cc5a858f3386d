import pytest
import torch

from farfield.math import gradient_matching_solver as matching_solver
from farfield.math import matching_direction
from farfield.math.gradient_matching_faces import settle


def _updates(clients: int, size: int, seed: int) -> torch.Tensor:
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _equal(clients: int) -> torch.Tensor:
    return torch.full((clients,), 1.0 / clients, dtype=torch.float64)


def _first(clients: int) -> torch.Tensor:
    return torch.eye(clients, dtype=torch.float64)[0]


def _settled(updates: torch.Tensor, kappa: float) -> torch.Tensor:
    mean = updates.mean(dim=0)
    return settle(updates @ updates.T, updates @ mean, kappa * float(mean.norm()), _equal(len(updates)))


def _assert_worst_attains_the_objective(updates: torch.Tensor, gamma: torch.Tensor, kappa: float) -> None:
    """Strong duality: no other direction within the radius does more for its worst client."""
    mean, combined = updates.mean(dim=0), gamma @ updates
    radius = kappa * mean.norm()
    direction = mean + radius * combined / combined.norm()
    objective = combined @ mean + radius * combined.norm()
    terms = (1 + kappa) * mean.norm() * (gamma @ updates.norm(dim=1))
    assert float((updates @ direction).min()) == pytest.approx(float(objective), abs=1e-9 * float(terms))


@pytest.mark.parametrize("kappa", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("clients", "size"), [(2, 1), (5, 2), (30, 4), (100, 20), (40, 60)])
def test_the_worst_client_of_its_direction_attains_the_objective(clients: int, size: int, kappa: float) -> None:
    updates = _updates(clients, size, seed=clients)
    _assert_worst_attains_the_objective(updates, _settled(updates, kappa), kappa)


def test_a_single_client_may_carry_everything() -> None:
    updates = torch.tensor([[1.0, 0.0], [3.0, 0.1], [4.0, -0.2]], dtype=torch.float64)
    assert _settled(updates, 0.2).tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)


def test_the_search_is_short_with_many_clients_in_few_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    hulls = []
    towards = matching_solver._towards_hull
    monkeypatch.setattr(matching_solver, "_towards_hull", lambda *given: hulls.append(given) or towards(*given))
    matching = matching_direction(_updates(100, 20, seed=0), kappa=0.99)
    assert matching.worst == pytest.approx(matching.objective, rel=1e-9)
    assert matching_solver._PATIENCE <= len(hulls) <= 2 * matching_solver._PATIENCE


def test_updates_that_can_cancel_end_on_the_simplex_and_are_certified() -> None:
    updates = _updates(30, 3, seed=5)
    updates = torch.cat([updates, -updates])
    gamma = settle(updates @ updates.T, updates @ updates[0], 2.0 * float(updates[0].norm()), _first(60))
    assert bool((gamma >= 0).all())
    assert float(gamma.sum()) == pytest.approx(1.0)
    assert float((gamma @ updates).norm()) < 1e-6, "with κ > 1 nothing is better than to cancel"
    matching = matching_direction(updates, kappa=2.0, reference=updates[0])
    assert matching.gap <= 1e-9 * float(updates.norm() ** 2)


def test_duplicates_and_clients_on_one_line_do_no_harm() -> None:
    line = torch.tensor([[1.0, 0.5]], dtype=torch.float64) * torch.linspace(
        1.0, 2.0, 20, dtype=torch.float64
    ).unsqueeze(1)
    updates = torch.cat([line, line, _updates(20, 2, seed=1)])
    gamma = _settled(updates, 0.9)
    _assert_worst_attains_the_objective(updates, gamma, 0.9)


def test_the_way_there_does_not_matter() -> None:
    updates = _updates(60, 12, seed=3)
    mean = updates.mean(dim=0)
    ends = [
        settle(updates @ updates.T, updates @ mean, 0.95 * float(mean.norm()), start)
        for start in (_equal(60), *torch.eye(60, dtype=torch.float64)[:3])
    ]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-9)
