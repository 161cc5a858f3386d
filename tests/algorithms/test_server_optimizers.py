"""Server optimizers through the method classes. Literals from golden.json, 'server_adam_l2', and worked by hand."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, State, build
from tests.algorithms.linear import replies, weights

pytestmark = pytest.mark.usefixtures("double")

GRADIENTS = [0.3, -0.1, 0.2]
ADAM = {
    "server_optimizer": "adam",
    "server_lr": 3e-4,
    "server_momentum": 0.9,
    "server_beta2": 0.999,
    "server_epsilon": 1e-8,
    "server_bias_correction": True,
}
GOLDEN = {
    ("wd", 1.0): [0.9997000000096774, 0.999569234167197, 0.9993799519204238],
    ("wd", 0.1): [0.9997000000749999, 0.9994989994218593, 0.9992596897186865],
    ("no wd", 1.0): [0.99970000001, 0.9995799344437842, 0.9993990085047284],
    ("no wd", 0.1): [0.9997000000999999, 0.9995799345821192, 0.999399008718454],
}


def follow(algorithm: FedAvg, rounds: list[Any], start: State) -> list[list[float]]:
    """The parameters after each of the rounds, given what the clients sent."""
    path, state = [], start
    for sent in rounds:
        state = state.step(algorithm.aggregate(sent))
        path.append(state.model.parameters.tolist())
    return path


@pytest.mark.parametrize(("decay", "scale"), GOLDEN)
def test_fedsgd_under_server_adam_is_golden_over_three_rounds(decay: str, scale: float) -> None:
    algorithm = build("fedsgd", {"lr": 1.0, "server_weight_decay": 0.01 if decay == "wd" else 0.0, **ADAM})
    # Two clients whose weighted mean is the golden gradient.
    rounds = [
        replies(
            {"gradient": torch.tensor([scale * (g - 0.3)]), "loss": 1.0},
            {"gradient": torch.tensor([scale * (g + 0.1)]), "loss": 1.0},
            samples=[10, 30],
        )
        for g in GRADIENTS
    ]
    path = follow(algorithm, rounds, algorithm.start(weights(1.0)))
    assert [w for (w,) in path] == pytest.approx(GOLDEN[decay, scale], abs=1e-13)


def test_fedadam_with_bias_correction_and_decay_is_golden_over_three_rounds() -> None:
    algorithm = build("fedadam", {**ADAM, "server_weight_decay": 0.01})
    rounds = [replies({"update": torch.tensor([-g]), "loss": 1.0}) for g in GRADIENTS]
    path = follow(algorithm, rounds, algorithm.start(weights(1.0)))
    assert [w for (w,) in path] == pytest.approx(GOLDEN["wd", 1.0], abs=1e-13)


def test_fedadam_as_published_has_no_bias_correction_and_starts_v_at_tau_squared() -> None:
    algorithm = build("fedadam", {"server_lr": 0.1, "server_epsilon": 0.01})
    path = follow(
        algorithm,
        [replies({"update": torch.tensor([d]), "loss": 1.0}) for d in (0.5, -0.2)],
        algorithm.start(weights(1.0)),
    )
    m1, v1 = 0.1 * 0.5, 0.99 * 0.01**2 + 0.01 * 0.25
    x1 = 1.0 + 0.1 * m1 / (sqrt(v1) + 0.01)
    m2, v2 = 0.9 * m1 + 0.1 * -0.2, 0.99 * v1 + 0.01 * 0.04
    x2 = x1 + 0.1 * m2 / (sqrt(v2) + 0.01)
    assert [w for (w,) in path] == pytest.approx([x1, x2], abs=1e-14)


def test_fedyogi_moves_v_by_a_bounded_amount_either_way() -> None:
    algorithm = build("fedyogi", {"server_lr": 0.1, "server_epsilon": 0.01})
    path = follow(
        algorithm,
        [replies({"update": torch.tensor([d]), "loss": 1.0}) for d in (0.5, 0.001)],
        algorithm.start(weights(1.0)),
    )
    m1, v1 = 0.1 * 0.5, 0.01**2 + 0.01 * 0.25  # v < Δ²: up
    x1 = 1.0 + 0.1 * m1 / (sqrt(v1) + 0.01)
    m2, v2 = 0.9 * m1 + 0.1 * 0.001, v1 - 0.01 * 0.001**2  # v > Δ²: down
    x2 = x1 + 0.1 * m2 / (sqrt(v2) + 0.01)
    assert [w for (w,) in path] == pytest.approx([x1, x2], abs=1e-14)


def test_fedavgm_remembers_the_last_direction() -> None:
    algorithm = build("fedavgm", {"server_lr": 0.5, "server_momentum": 0.9})
    rounds = [replies({"update": torch.tensor(d), "loss": 1.0}) for d in ([1.0, -2.0], [0.5, 0.5], [0.0, 0.0])]
    path = follow(algorithm, rounds, algorithm.start(weights(0.0, 0.0)))
    # m: (1, −2); 0.9m + (0.5, 0.5) = (1.4, −1.3); (1.26, −1.17).  x moves by half of it each time.
    assert path == [
        pytest.approx([0.5, -1.0], abs=1e-15),
        pytest.approx([1.2, -1.65], abs=1e-15),
        pytest.approx([1.83, -2.235], abs=1e-15),
    ]


def test_fedavgm_averages_before_it_remembers() -> None:
    algorithm = build("fedavgm")
    rounds = [
        replies({"update": torch.tensor([4.0])}, {"update": torch.tensor([0.0])}, samples=[10, 30]),
        replies({"update": torch.tensor([0.0])}, {"update": torch.tensor([4.0])}, samples=[10, 30]),
    ]
    path = follow(algorithm, rounds, algorithm.start(weights(0.0)))
    assert [x for (x,) in path] == pytest.approx([1.0, 1.0 + 0.9 * 1.0 + 3.0], abs=1e-15)


def test_a_composition_applies_the_servers_optimizer_to_the_clients_mean() -> None:
    alone = build("fedadam", {"server_lr": 0.1})
    composed = build("fedprox+fedadam", {"server_lr": 0.1})
    rounds = [replies({"update": torch.tensor([d]), "loss": 1.0}) for d in (0.5, -0.2)]
    assert follow(composed, rounds, composed.start(weights(1.0))) == follow(alone, rounds, alone.start(weights(1.0)))
