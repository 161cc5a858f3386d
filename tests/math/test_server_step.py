from collections.abc import Callable

import pytest
import torch

from farfield.math import adam_step, sgd_step, yogi_step


def _gradients(seed: int) -> torch.Tensor:
    return torch.randn(12, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _follow(step: Callable[..., object], start: torch.Tensor, gradients: torch.Tensor, **how: object) -> torch.Tensor:
    """Parameters after every round, stepping along the negative of each gradient."""
    parameters, slots, path = start, {}, []
    for gradient in gradients:
        parameters, slots = step(parameters, -gradient, slots, **how)
        path.append(parameters)
    return torch.stack(path)


@pytest.mark.parametrize(
    ("scale", "weight_decay", "expected"),
    [
        (1.0, 0.01, [0.9997000000096774, 0.999569234167197, 0.9993799519204238]),
        (0.1, 0.01, [0.9997000000749999, 0.9994989994218593, 0.9992596897186865]),
        (0.1, 0.0, [0.9997000000999999, 0.9995799345821192, 0.999399008718454]),
        (1.0, 0.0, [0.99970000001, 0.9995799344437842, 0.9993990085047284]),
    ],
)
def test_bias_corrected_adam_matches_the_golden_numbers(
    scale: float, weight_decay: float, expected: list[float]
) -> None:
    path = _follow(
        adam_step,
        torch.ones(1, dtype=torch.float64),
        gradients=scale * torch.tensor([[0.3], [-0.1], [0.2]], dtype=torch.float64),
        lr=3e-4,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        bias_correction=True,
        weight_decay=weight_decay,
    )
    torch.testing.assert_close(path[:, 0], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def _optimizer_path(optimizer: type, gradients: torch.Tensor, start: torch.Tensor, **how: object) -> torch.Tensor:
    parameter = torch.nn.Parameter(start.clone())
    running = optimizer([parameter], **how)
    path = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        running.step()
        path.append(parameter.detach().clone())
    return torch.stack(path)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_bias_corrected_adam_is_torch_adam(weight_decay: float) -> None:
    gradients, start = _gradients(0), torch.linspace(-1, 1, 5, dtype=torch.float64)
    ours = _follow(
        adam_step,
        start,
        gradients=gradients,
        lr=0.1,
        beta1=0.8,
        beta2=0.97,
        epsilon=1e-6,
        bias_correction=True,
        weight_decay=weight_decay,
    )
    theirs = _optimizer_path(
        torch.optim.Adam, gradients, start, lr=0.1, betas=(0.8, 0.97), eps=1e-6, weight_decay=weight_decay
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)])
def test_sgd_is_torch_sgd(momentum: float, weight_decay: float) -> None:
    gradients, start = _gradients(1), torch.linspace(-1, 1, 5, dtype=torch.float64)
    ours = _follow(sgd_step, start, gradients=gradients, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    theirs = _optimizer_path(torch.optim.SGD, gradients, start, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)


def test_sgd_at_rate_one_adds_the_direction_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(2)
    parameters, direction = torch.randn(2, 1000, generator=generator)
    moved, slots = sgd_step(parameters, direction, {}, lr=1.0)
    assert torch.equal(moved, parameters + direction)
    assert slots == {}


def _reddi(
    start: float, deltas: list[float], lr: float, beta1: float, beta2: float, tau: float, rule: str
) -> list[float]:
    """Algorithm 2 of Reddi et al. on one coordinate, in plain Python."""
    x, m, v, path = start, 0.0, tau**2, []
    for delta in deltas:
        m = beta1 * m + (1 - beta1) * delta
        if rule == "adam":
            v = beta2 * v + (1 - beta2) * delta**2
        else:
            sign = (v > delta**2) - (v < delta**2)
            v = v - (1 - beta2) * delta**2 * sign
        x = x + lr * m / (v**0.5 + tau)
        path.append(x)
    return path


@pytest.mark.parametrize(("step", "rule"), [(adam_step, "adam"), (yogi_step, "yogi")])
def test_fedadam_and_fedyogi_follow_their_algorithm(step: Callable[..., object], rule: str) -> None:
    deltas = [0.3, -0.2, 0.05, 0.0, 1.0, -1e-4]
    expected = _reddi(0.5, deltas, lr=0.1, beta1=0.9, beta2=0.99, tau=1e-2, rule=rule)
    gradients = -torch.tensor(deltas, dtype=torch.float64).unsqueeze(1)
    path = _follow(step, torch.tensor([0.5], dtype=torch.float64), gradients=gradients, lr=0.1, epsilon=1e-2)
    torch.testing.assert_close(path[:, 0], torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=0)


@pytest.mark.parametrize("step", [adam_step, yogi_step])
def test_the_second_moment_of_the_adaptive_steps_starts_at_epsilon_squared(step: Callable[..., object]) -> None:
    _, slots = step(torch.zeros(2), torch.zeros(2), {}, lr=1.0, beta2=1.0, epsilon=0.5)
    assert torch.equal(slots["v"], torch.full((2,), 0.25))
    assert int(slots["count"]) == 1


def test_bias_corrected_adam_starts_at_zero_and_is_nearly_free_of_scale() -> None:
    how = {"lr": 0.1, "epsilon": 1e-12, "bias_correction": True}
    start = torch.zeros(3, dtype=torch.float64)
    direction = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    large, _ = adam_step(start, direction, {}, **how)
    small, _ = adam_step(start, 1e-3 * direction, {}, **how)
    torch.testing.assert_close(large, small, rtol=1e-8, atol=0)
    torch.testing.assert_close(large, 0.1 * direction.sign(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("step", [adam_step, yogi_step, sgd_step])
def test_a_step_leaves_its_inputs_alone_and_repeats_to_the_bit(step: Callable[..., object]) -> None:
    how = {"lr": 0.1, "momentum": 0.9} if step is sgd_step else {"lr": 0.1}
    parameters, direction = torch.ones(3), torch.tensor([1.0, -1.0, 0.5])
    _, slots = step(parameters, direction, {}, **how)
    before = {name: slot.clone() for name, slot in slots.items()}
    first, _ = step(parameters, direction, slots, **how)
    second, _ = step(parameters, direction, slots, **how)
    assert torch.equal(first, second)
    assert torch.equal(parameters, torch.ones(3))
    assert torch.equal(direction, torch.tensor([1.0, -1.0, 0.5]))
    assert all(torch.equal(slots[name], before[name]) for name in before)


def test_slots_of_another_optimizer_are_refused_by_name() -> None:
    _, slots = sgd_step(torch.zeros(2), torch.ones(2), {}, lr=1.0, momentum=0.9)
    with pytest.raises(ValueError, match="'v' is missing"):
        adam_step(torch.zeros(2), torch.ones(2), slots, lr=1.0)
