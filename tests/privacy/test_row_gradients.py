"""The clipped sum of rows' gradients equals a loop over rows, and one row changes it by at most the limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms import FedAvg
from farfield.federation.client import Batch
from farfield.models import Model, ModelSpec, build_model
from farfield.privacy import row_gradients
from farfield.privacy.row_gradients import clipped_sum, is_of_linear_layers

ROWS = FedAvg().row_losses
VECTORS = {"input_shape": (5,), "outputs": 3}
#: Models of both ways: linear layers alone, and everything else that does not mix rows.
SPECS = {
    "linear": ModelSpec(featurizer="identity", **VECTORS),
    "without a bias": ModelSpec(featurizer="identity", head_bias=False, **VECTORS),
    "mlp": ModelSpec(hidden=(7, 4), **VECTORS),
    "mlp head": ModelSpec(hidden=(6,), head="mlp", head_hidden=5, **VECTORS),
    "one logit": ModelSpec(hidden=(6,), input_shape=(5,), outputs=1),
    "group norm": ModelSpec(hidden=(16,), norm="group", **VECTORS),
    "frozen norm": ModelSpec(hidden=(6,), norm="freeze", **VECTORS),
    "convnet": ModelSpec(featurizer="convnet", input_shape=(1, 8, 8), outputs=3, hidden=(3, 4)),
}
LINEAR = {"linear", "without a bias", "mlp", "mlp head", "one logit"}


def made(name: str, rows: int = 9) -> tuple[Model, Batch]:
    spec, generator = SPECS[name], torch.Generator().manual_seed(3)
    model = build_model(spec, seed=1).train()
    x = 2 * torch.randn((rows, *spec.input_shape), generator=generator)
    return model, Batch(x, torch.arange(rows) % max(2, spec.outputs))


def by_loop(model: Model, batch: Batch) -> Tensor:
    """One backward per row."""
    gradients = []
    for x, y in zip(batch.x, batch.y, strict=True):
        model.backward(FedAvg().loss(model, Batch(x.unsqueeze(0), y.unsqueeze(0))))
        gradients.append(model.gradient.clone())
    return torch.stack(gradients)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("clip", [0.3, 1.0, 1e9])
def test_the_clipped_sum_equals_a_loop_over_rows(name: str, clip: float) -> None:
    model, batch = made(name)
    rows = by_loop(model, batch).double()
    # The definition, as in Opacus' optimizer: a factor min(1, C / ‖g‖) for each row, and the sum.
    factors = (clip / rows.norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)
    expected = (rows * factors.unsqueeze(1)).sum(0)
    assert is_of_linear_layers(model) is (name in LINEAR)
    found = clipped_sum(model, ROWS, batch, clip)
    assert torch.allclose(found.double(), expected, rtol=2e-5, atol=2e-6)
    if clip == 0.3:
        assert float(expected.norm()) < 0.9 * float(rows.sum(0).norm()), "some rows are cut, or the test shows nothing"


@pytest.mark.parametrize("name", sorted(LINEAR))
def test_closed_forms_equal_one_gradient_per_row(name: str) -> None:
    model, batch = made(name)
    closed = clipped_sum(model, ROWS, batch, 0.5)
    assert torch.allclose(closed, row_gradients._sum_row_by_row(model, ROWS, batch, 0.5), rtol=1e-5, atol=1e-6)


def test_rows_in_several_parts_give_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = made("convnet")
    whole = clipped_sum(model, ROWS, batch, 0.5)
    monkeypatch.setattr(row_gradients, "NUMBERS_AT_ONCE", 2 * model.layout.parameters)
    assert torch.allclose(clipped_sum(model, ROWS, batch, 0.5), whole, atol=1e-6)


@pytest.mark.parametrize("value", [1e30, 1e37, 1e38, 3e38])
@pytest.mark.parametrize("clip", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_a_row_at_the_end_of_the_numbers_keeps_to_the_limit(name: str, clip: float, value: float) -> None:
    """The factor that cuts it is so small that float32 has only a few digits of it, or one."""
    model, _ = made(name)
    x = value * torch.tensor([[1.0, -0.3, 0.5, 0.1, -0.7]])
    for label in range(3):
        alone = clipped_sum(model, ROWS, Batch(x, torch.tensor([label])), clip)
        assert float(alone.double().norm()) <= clip


@pytest.mark.parametrize("name", ["mlp", "convnet"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e15])
def test_one_row_changes_the_sum_by_at_most_the_limit(name: str, scale: float) -> None:
    """Neighbouring data sets by brute force: each row taken out in turn, also a row of outrageous size."""
    clip = 0.7
    model, batch = made(name)
    batch = Batch(batch.x * scale, batch.y)
    whole = clipped_sum(model, ROWS, batch, clip).double()
    changes = []
    for out in range(len(batch.y)):
        kept = torch.arange(len(batch.y)) != out
        without = clipped_sum(model, ROWS, Batch(batch.x[kept], batch.y[kept]), clip).double()
        changes.append(float((whole - without).norm()))
    assert max(changes) <= clip * (1 + 1e-6)
    if scale == 1.0:
        assert max(changes) > 0.99 * clip, "the limit is reached"


@pytest.mark.parametrize("name", ["mlp", "convnet"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 3e38])
def test_a_row_without_a_finite_gradient_adds_nothing(name: str, bad: float) -> None:
    model, batch = made(name)
    without = clipped_sum(model, ROWS, Batch(batch.x[1:], batch.y[1:]), 1.0)
    x = batch.x.clone()
    x[0] = bad
    with_it = clipped_sum(model, ROWS, Batch(x, batch.y), 1.0)
    assert bool(torch.isfinite(with_it).all())
    assert float((with_it - without).norm()) <= 1.0


def test_an_empty_batch_adds_nothing() -> None:
    model, batch = made("mlp")
    assert not clipped_sum(model, ROWS, Batch(batch.x[:0], batch.y[:0]), 1.0).any()


def test_dropout_and_sampled_representations_stay_within_the_limit() -> None:
    for spec in (
        ModelSpec(hidden=(16,), dropout=0.5, **VECTORS),  # type: ignore[arg-type]
        ModelSpec(hidden=(16,), dropout=0.5, norm="group", **VECTORS),  # type: ignore[arg-type]
        ModelSpec(hidden=(8,), representation="gaussian", **VECTORS),  # type: ignore[arg-type]
    ):
        model = build_model(spec, seed=0).train()
        for seed in range(5):
            torch.manual_seed(seed)
            batch = Batch(50 * torch.randn(1, 5), torch.zeros(1, dtype=torch.int64))
            assert float(clipped_sum(model, ROWS, batch, 0.25).double().norm()) <= 0.25


def test_regressions_are_clipped_too() -> None:
    model: Any = build_model(ModelSpec(hidden=(6,), input_shape=(5,), outputs=1), seed=0).train()
    batch = Batch(torch.randn((6, 5), generator=torch.Generator().manual_seed(0)), torch.linspace(-3.0, 3.0, 6))
    rows = by_loop(model, batch)
    factors = (0.4 / rows.norm(dim=1)).clamp(max=1.0)
    assert torch.allclose(
        clipped_sum(model, ROWS, batch, 0.4), (rows * factors.unsqueeze(1)).sum(0), rtol=1e-4, atol=1e-6
    )
