"""Local optimizers on flat vectors against torch.optim."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farfield.federation.local_optimizer import LocalOptimizer

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"weight_decay": 0.05}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.05}),
    ("adam", {}),
    ("adam", {"weight_decay": 0.05}),
]


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
@pytest.mark.usefixtures("double")
def test_twenty_steps_are_torchs_own(kind: str, settings: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, generator=generator)
    curvature = torch.rand(7, generator=generator) * 5
    noise = torch.randn(20, 7, generator=generator)
    reference = start.clone().requires_grad_()
    torchs = (
        torch.optim.SGD([reference], lr=0.05, **settings)
        if kind == "sgd"
        else torch.optim.Adam([reference], lr=0.05, **settings)
    )
    ours = LocalOptimizer(kind, 0.05, settings.get("momentum", 0.0), settings.get("weight_decay", 0.0))
    parameters = start.clone()
    for step in range(20):
        torchs.zero_grad()
        (0.5 * curvature * reference.square() + noise[step] * reference).sum().backward()
        torchs.step()
        ours.step(parameters, curvature * parameters + noise[step])
        torch.testing.assert_close(parameters, reference.detach(), rtol=0, atol=1e-13)
    assert float((parameters - start).norm()) > 0.1


@pytest.mark.usefixtures("double")
def test_two_steps_with_momentum_and_decay_by_hand() -> None:
    optimizer = LocalOptimizer("sgd", 0.1, 0.5, 0.1)
    w = torch.tensor([1.0])
    optimizer.step(w, torch.tensor([2.0]))  # v = 2 + 0.1·1 = 2.1
    assert w.tolist() == pytest.approx([0.79], abs=1e-15)
    optimizer.step(w, torch.tensor([2.0]))  # v = 0.5·2.1 + 2 + 0.079 = 3.129
    assert w.tolist() == pytest.approx([0.79 - 0.3129], abs=1e-15)


def test_the_parameters_are_changed_in_place() -> None:
    for kind in ("sgd", "adam"):
        w = torch.ones(3)
        view = w[1:]
        LocalOptimizer(kind, 0.1, 0.0, 0.0).step(w, torch.ones(3))
        assert view.tolist() == pytest.approx([0.9, 0.9], abs=1e-6)
