"""FedOMG as a method and as the server of others, against worked examples."""

from __future__ import annotations

import pytest
import torch

from farfield.algorithms import Direction, build
from farfield.federation.federation import Replies, Reply
from farfield.models import ModelState
from tests.toy import domains, federation, initial

# golden: omg_three_gradients and omg_weighted
D = torch.tensor([[1.0, 0.2, 0.0, 0.5], [-0.3, 0.8, 0.1, 0.4], [0.1, -0.6, 0.9, 0.3]], dtype=torch.float64)
UNIFORM = [0.18655153112281186, 0.29745977013717184, 0.49867736752465264, 0.5711882827655128]
OVER_KAPPA_SQUARED = [0.14924122489824948, 0.23796781610973747, 0.39894189401972213, 0.4569506262124102]
PUBLISHED_LOOP = [0.15102242438429908, 0.23643912245933968, 0.40039890811424, 0.4577505334544497]
WEIGHTED = [0.36173257703017764, 0.321114925104914, 0.45936410887085566, 0.6262342276187595]
THETA = [0.5093275765561406, -0.4851270114931414, 0.2749338683762326, 1.0285594141382757]


def replies(samples: list[int]) -> Replies:
    return Replies(tuple(Reply(i, str(i), n, {"update": D[i]}) for i, n in enumerate(samples)))


@pytest.mark.parametrize(
    ("settings", "samples", "expected"),
    [
        ({"weighting": "uniform"}, [1, 1, 1], UNIFORM),
        ({"weighting": "uniform", "rescale": "1+kappa^2"}, [1, 1, 1], OVER_KAPPA_SQUARED),
        ({"weighting": "samples"}, [50, 30, 20], WEIGHTED),
        ({"weighting": "uniform", "solver": "paper", "rescale": "1+kappa^2"}, [1, 1, 1], PUBLISHED_LOOP),
    ],
)
def test_the_direction_is_the_worked_example(
    settings: dict[str, str], samples: list[int], expected: list[float]
) -> None:
    aggregate = build("fedomg", settings).aggregate(replies(samples))
    assert aggregate.direction.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_direction_is_added_with_the_global_step_size() -> None:
    algorithm = build("fedomg", {"weighting": "uniform", "server_lr": 0.05})
    start = ModelState(torch.tensor([0.5, -0.5, 0.25, 1.0], dtype=torch.float64), torch.zeros(0))
    after = algorithm.start(start).step(algorithm.aggregate(replies([1, 1, 1])))
    assert after.model.parameters.tolist() == pytest.approx(THETA, rel=1e-6)


def test_the_worst_inner_product_is_the_optimum_and_is_recorded() -> None:
    diagnostics = build("fedomg", {"weighting": "uniform"}).aggregate(replies([1, 1, 1])).diagnostics
    assert diagnostics["worst_inner_product"] == pytest.approx(0.4603454066316457, rel=1e-9)
    assert diagnostics["matching_gap"] < 1e-9
    assert diagnostics["gamma_max"] == pytest.approx(0.6806282311854682, rel=1e-5)


def test_identical_clients_go_one_plus_kappa_times_as_far() -> None:
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    weights = torch.tensor([0.5, 0.5])
    ruled = build("fedomg").rule(rows, weights, rows[0])
    assert isinstance(ruled, Direction)
    torch.testing.assert_close(ruled.direction, 1.5 * rows[0])


def test_a_client_that_did_not_move_gives_the_client_methods_step_and_a_note() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.8, 0.1], [0.0, 0.0]])
    weights = torch.full((3,), 1 / 3)
    ruled = build("fedomg").rule(rows, weights, rows.mean(dim=0))
    assert isinstance(ruled, Direction)
    torch.testing.assert_close(ruled.direction, rows.mean(dim=0))
    assert "vanishes" in ruled.notes[0]


def test_what_is_taken_as_it_is_is_not_rescaled_and_what_is_matched_is_not_called_vanished() -> None:
    idle = torch.tensor([[1.0, 0.0], [0.8, 0.1], [0.0, 0.0]])
    shares = torch.full((3,), 1 / 3)
    ruled = build("fedomg", {"rescale": "1+kappa"}).rule(idle, shares, idle.mean(dim=0))
    assert isinstance(ruled, Direction)
    torch.testing.assert_close(ruled.direction, idle.mean(dim=0))
    slow = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.1, 0.0], [0.0, 1e-10, 0.0]])
    ruled = build("fedomg").rule(slow, shares, slow.mean(dim=0))
    assert isinstance(ruled, Direction)
    assert float(ruled.direction[1]) > 0.3  # all the radius goes to the client that hardly moved
    assert not ruled.notes
    assert ruled.diagnostics["worst_inner_product"] == pytest.approx(float((slow @ ruled.direction).min()), rel=1e-5)


def test_one_client_is_told_that_there_is_nothing_to_match() -> None:
    ruled = build("fedomg").rule(torch.tensor([[1.0, 2.0]]), torch.ones(1), torch.tensor([1.0, 2.0]))
    assert isinstance(ruled, Direction)
    torch.testing.assert_close(ruled.direction, torch.tensor([1.5, 3.0]))
    assert "one client only" in ruled.notes[0]


@pytest.mark.parametrize("kappa", [1.0, 3.0])
def test_a_large_radius_reaches_the_optimum_and_harms_nobody(kappa: float) -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.01]])
    ruled = build("fedomg", {"kappa": kappa}).rule(rows, torch.tensor([0.5, 0.5]), rows.mean(dim=0))
    assert isinstance(ruled, Direction)
    # In the plane the best direction can be had by trying them all.
    reference = rows.mean(dim=0).double()
    angles = torch.linspace(0, 2 * torch.pi, 200_001, dtype=torch.float64)
    circle = reference + kappa * reference.norm() * torch.stack([angles.cos(), angles.sin()], dim=1)
    best = (circle @ rows.double().T).min(dim=1).values.max()
    assert float((rows @ ruled.direction).min()) == pytest.approx(float(best), rel=1e-3)
    assert float(best) > 0


def test_on_other_methods_clients_the_reference_is_their_own_step() -> None:
    """With κ = 0 the composition is the client method itself."""
    for client in ("fedavg", "fediir", "fedprox", "scaffold", "fedsgd", "fedilc-inter-geo"):
        alone, composed = build(client), build(f"{client}+fedomg", {"kappa": 0.0})
        states = []
        for algorithm in (alone, composed):
            with federation(algorithm, domains(3)) as fed:
                state = algorithm.start(initial().state())
                for number in (1, 2):
                    fed.begin(number, range(3))
                    state = algorithm.round(fed, state)
                states.append(state.model.parameters)
        torch.testing.assert_close(states[0], states[1], rtol=0, atol=1e-7)


def published_for_unseen_domains(updates: torch.Tensor, shares: list[float], kappa: float) -> torch.Tensor:
    """The published rule written again with torch's optimizer: weigh, match with the uniform mean, divide by 1 + κ²."""
    rows = updates * torch.tensor(shares, dtype=updates.dtype).unsqueeze(1)
    gram = rows @ rows.T
    gram = gram / (gram.diagonal() + 1e-4).sqrt().mean() ** 2
    radius = kappa * (gram.mean() + 1e-4).sqrt()
    logits = torch.zeros(len(rows), dtype=rows.dtype, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=25, momentum=0.5)
    seen = []
    for _ in range(21):
        gamma = logits.softmax(0)
        value = gamma @ gram.mean(1) + radius * (gamma @ gram @ gamma + 1e-4).sqrt()
        seen.append((float(value.detach()), gamma.detach()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    best = min(seen, key=lambda pair: pair[0])[1]
    stretch = radius / ((best @ gram @ best + 1e-4).sqrt() + 1e-4)
    return (rows.mean(0) + stretch * (best @ rows)) / (1 + kappa**2)


def test_the_weighted_hull_is_that_of_the_published_code_for_unseen_domains() -> None:
    settings = {"hull": "weighted", "solver": "paper", "rescale": "1+kappa^2"}
    aggregate = build("fedomg", settings).aggregate(replies([50, 30, 20]))
    expected = published_for_unseen_domains(D, [0.5, 0.3, 0.2], 0.5)
    torch.testing.assert_close(aggregate.direction, expected, rtol=1e-9, atol=1e-12)


def test_without_a_radius_the_weighted_hull_is_the_clients_step_divided_by_their_number() -> None:
    aggregate = build("fedomg", {"hull": "weighted", "kappa": 0.0}).aggregate(replies([50, 30, 20]))
    # (0.5 · 1 − 0.3 · 0.3 + 0.2 · 0.1) / 3, and so on.
    assert aggregate.direction.tolist() == pytest.approx([0.43 / 3, 0.22 / 3, 0.21 / 3, 0.43 / 3], rel=1e-12)


def test_without_a_radius_solver_and_divisor_have_no_effect_and_are_named() -> None:
    for name in ("fedomg", "fedprox+fedomg"):
        assert {"solver", "rescale"} <= set(build(name, {"kappa": 0.0}).params.idle())
        assert not {"solver", "rescale", "hull"} & set(build(name, {"kappa": 0.1}).params.idle())
    plain = build("fedomg", {"kappa": 0.0}).aggregate(replies([50, 30, 20])).direction
    other = build("fedomg", {"kappa": 0.0, "solver": "paper", "rescale": "1+kappa"}).aggregate(replies([50, 30, 20]))
    torch.testing.assert_close(other.direction, plain, rtol=1e-12, atol=0)
