"""The hooks of local training work on a stack of clients: the same numbers as client by client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms import build
from farfield.federation.local_training import Local
from farfield.math import AlignedHead, aligned_cross_entropy
from farfield.models import ModelSpec, build_model, task_loss
from farfield.tasks.task import Domain
from tests.engines.stacked import train_stack
from tests.toy import SPEC, domain, federation, initial, population, sent

pytestmark = pytest.mark.usefixtures("double")


def sites() -> list[Domain]:
    """Three clients with the same number of rows, so that their mini-batches are equally long."""
    made = [domain(name, shift=0.5 * i, rows=40) for i, name in enumerate("abc")]
    return [Domain(d.name, d.x.double(), d.y) for d in made]


def shared_by(name: str, spec: ModelSpec) -> dict[str, Tensor]:
    model = initial(spec)
    random = torch.Generator().manual_seed(3)
    head = model.layout.head.stop - model.layout.head.start
    size = {"scaffold": ("control", len(model.vector)), "fediir": ("target", head)}.get(name)
    return {} if size is None else {size[0]: 0.1 * torch.randn(size[1], generator=random)}


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}], ids=["sgd", "m", "adam"]
)
@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.parametrize(
    ("name", "own"), [("fedavg", {}), ("fedprox", {"mu": 0.5}), ("scaffold", {}), ("fediir", {"gamma": 0.7})]
)
def test_training_a_stack_is_training_each_client(
    name: str, own: dict[str, float], outputs: int, settings: dict[str, Any]
) -> None:
    if name == "scaffold" and settings:
        pytest.skip("control variates are for plain SGD")
    spec = SPEC.model_copy(update={"outputs": outputs})
    chosen = [Domain(d.name, d.x, d.y % 2) if outputs == 1 else d for d in sites()]
    algorithm = build(name, {"lr": 0.1, "batch_size": 8, "local_epochs": 2, **own, **settings})
    shared, start = shared_by(name, spec), initial(spec).state()
    kept = {i: {"control": torch.full((len(start.parameters),), 0.02 * (i + 1))} for i in range(3)}
    kept = kept if name == "scaffold" else {}
    with federation(algorithm, chosen, spec) as fed:
        fed.states = kept
        fed.begin(1, range(3))
        alone = sent(fed, algorithm.train, start, **shared)
    people = population(chosen)
    clients = [people.client(i, seed=0, round=1, phase="train", state=dict(kept.get(i, {}))) for i in range(3)]
    together = train_stack(algorithm, clients, initial(spec), start, shared)
    for one, other in zip(alone, together, strict=True):
        for output in set(other) - {"loss"}:
            torch.testing.assert_close(other[output], one[output], rtol=1e-11, atol=1e-13)
    assert not torch.allclose(alone[0]["update"], alone[1]["update"]), "the clients differ"


@pytest.mark.parametrize(("name", "own"), [("fedprox", {"mu": 0.5}), ("scaffold", {}), ("fedavg", {})])
def test_a_penalty_has_one_value_per_client(name: str, own: dict[str, float]) -> None:
    algorithm = build(name, own)
    random = torch.Generator().manual_seed(0)
    parameters, start, control, own_control = torch.randn(4, 3, 5, generator=random)
    values = {"control": control, "own_control": own_control}
    stacked = algorithm.penalty(Local(parameters, start, values))
    alone = [
        algorithm.penalty(Local(parameters[i], start[i], {name: value[i] for name, value in values.items()}))
        for i in range(3)
    ]
    torch.testing.assert_close(stacked, torch.stack(alone))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 4])
def test_a_stack_of_aligned_heads_is_each_head_alone(outputs: int, bias: bool) -> None:
    random = torch.Generator().manual_seed(1)
    features, y = torch.randn(3, 7, 5, generator=random), torch.arange(21).view(3, 7) % max(outputs, 2)
    weight = torch.randn(3, outputs, 5, generator=random)
    offset = torch.randn(3, outputs, generator=random) if bias else None
    target = torch.randn(3, outputs * 5 + (outputs if bias else 0), generator=random)
    stacked = AlignedHead(weight, offset, target, 0.7)(features, y)
    for i in range(3):
        alone = AlignedHead(weight[i], None if offset is None else offset[i], target[i], 0.7)(features[i], y[i])
        for many, one in zip(stacked, alone, strict=True):
            torch.testing.assert_close(many[i], one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bias", [True, False])
def test_the_aligned_loss_of_a_stack_has_each_heads_gradient(bias: bool) -> None:
    random = torch.Generator().manual_seed(1)
    inputs = [torch.randn(3, 7, 5, generator=random), torch.randn(3, 4, 5, generator=random)]
    inputs += [torch.randn(3, 4, generator=random)] if bias else []
    y, target = torch.arange(21).view(3, 7) % 4, torch.randn(3, 24 if bias else 20, generator=random)
    variables = [value.requires_grad_() for value in inputs]
    features, weight, *rest = variables
    offset = rest[0] if rest else None
    loss = aligned_cross_entropy(features, weight, offset, y, target, 0.7)
    together = torch.autograd.grad(loss.sum(), variables)
    for i in range(3):
        own = None if offset is None else offset[i]
        one = aligned_cross_entropy(features[i], weight[i], own, y[i], target[i], 0.7)
        for many, alone in zip(together, torch.autograd.grad(one, variables), strict=True):
            torch.testing.assert_close(many[i], alone[i], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", ["classes", "one logit", "regression"])
def test_the_loss_of_a_stack_is_the_loss_of_each_client(kind: str, reduction: str) -> None:
    random = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 6, 4 if kind == "classes" else 1, generator=random)
    y = torch.randn(3, 6, generator=random) if kind == "regression" else torch.arange(18).view(3, 6) % 2
    alone = torch.stack([task_loss(logits[i], y[i], reduction) for i in range(3)])
    torch.testing.assert_close(task_loss(logits, y, reduction), alone)


def test_something_made_once_is_made_at_the_first_step_only() -> None:
    local, made = Local(torch.zeros(2), torch.zeros(2), {"target": torch.ones(1)}), []
    for _ in range(3):
        assert local.once("it", lambda: made.append(1) or len(made)) == 1
    assert local.target.tolist() == [1.0]
    with pytest.raises(AttributeError, match="no 'goal'; it was given"):
        local.goal  # noqa: B018
    assert build_model(SPEC, 0).vector.dtype == torch.float64
