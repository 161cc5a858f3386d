"""Class weights: a rare class counts as much as a common one in every method that says so, by the right gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from farfield.algorithms import FedAvg, Local, method
from farfield.algorithms.worked_examples import Toy, gradient_of, worked_example
from farfield.federation.client import Client, Rows
from farfield.models import build_model, task_loss
from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError
from farfield.tasks.task import Domain, Task
from tests.battery.methods import make, single
from tests.battery.test_battery import _local_step, trained, vector
from tests.battery.worked import built, difference, float64
from tests.toy import SPEC, domain

WEIGHING = [name for name in single() if method(name).supports.class_weights is True and method(name).trains]


def client(labels: list[int], dtype: torch.dtype = torch.float32) -> Client:
    x = torch.randn((len(labels), 4), generator=torch.Generator().manual_seed(1), dtype=dtype)
    rows = Rows({"a": Domain("a", x, torch.tensor(labels))}, [("a", torch.arange(len(labels)))])
    return Client(0, "a", "a", rows, Rows({}, ()), seed=0, round=1, phase="train")


def unbalanced() -> list[Domain]:
    """Two clients with many rows of class 0, few of class 1 and few of class 2."""
    made = []
    for name in "ab":
        of = domain(name, shift=0.3, rows=60)
        keep = torch.tensor([i for i, label in enumerate(of.y.tolist()) if label == 0 or i % 4 == 1 or i % 5 == 2])
        made.append(Domain(name, of.x[keep], of.y[keep]))
    return made


def test_weights_are_inverse_to_the_clients_own_counts_with_mean_one_over_its_rows() -> None:
    weights = client([0, 0, 0, 0, 0, 0, 2, 2]).balanced_weights(3)
    assert weights.tolist() == pytest.approx([8 / (2 * 6), 0.0, 8 / (2 * 2)])
    assert float(weights[torch.tensor([0, 0, 0, 0, 0, 0, 2, 2])].mean()) == pytest.approx(1.0)


def test_a_client_with_equal_counts_weighs_all_rows_the_same() -> None:
    assert client([0, 1, 2, 0, 1, 2]).balanced_weights(3).tolist() == [1.0, 1.0, 1.0]
    logits, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(task_loss(logits, y, class_weights=torch.ones(3)), task_loss(logits, y))


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_weighted_loss_is_the_mean_over_rows_of_weight_times_loss(outputs: int) -> None:
    logits, y = torch.randn(5, outputs), torch.tensor([0, 1, 1, 0, 1])
    weights = torch.tensor([0.5, 2.0, 7.0])[: max(2, outputs)]
    by_hand = sum(float(weights[y[i]]) * float(task_loss(logits[i : i + 1], y[i : i + 1])) for i in range(5)) / 5
    assert float(task_loss(logits, y, class_weights=weights)) == pytest.approx(by_hand, rel=1e-5)
    both = task_loss(torch.stack([logits, logits]), torch.stack([y, y]), class_weights=torch.stack([weights, weights]))
    assert both.tolist() == pytest.approx([by_hand, by_hand], rel=1e-5)


@pytest.mark.parametrize("name", WEIGHING)
def test_balanced_weights_change_the_result_on_unbalanced_clients(name: str) -> None:
    results = [
        vector(a, trained(a, unbalanced(), rounds=2)[0])
        for a in (make(name), make(name, class_weights="none"), make(name, class_weights="balanced"))
    ]
    assert torch.equal(results[0], results[1])
    assert not torch.allclose(results[0], results[2], atol=1e-5)


@pytest.mark.parametrize("name", [n for n in WEIGHING if method(n).loss is not FedAvg.loss or n == "fedavg"])
def test_the_gradient_of_the_weighted_objective_equals_finite_differences(name: str) -> None:
    algorithm = make(name, class_weights="balanced")
    model, prepared, batch = _local_step(algorithm)
    weights = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    local = Local(prepared.parameters, prepared.start, {**prepared.shared, "class_weights": weights})
    torch.manual_seed(0)
    algorithm.local_gradient(model, batch, local)
    gradient, here = model.gradient.clone(), model.vector.clone()

    def objective(parameters: Tensor) -> float:
        model.vector.copy_(parameters)
        torch.manual_seed(0)
        return float(algorithm.loss(model, batch, **local.shared).detach())

    direction = torch.randn(len(here), generator=torch.Generator().manual_seed(3), dtype=here.dtype)
    slope = (objective(here + 1e-6 * direction) - objective(here - 1e-6 * direction)) / 2e-6
    assert slope == pytest.approx(float(gradient @ direction), rel=1e-5, abs=1e-8)


def test_fedilcs_closed_forms_weigh_classes_as_autograd_does() -> None:
    """Gradient, variance and the gradient of the variance's distance, each written naively for weighted rows."""
    labels = [0, 0, 0, 0, 0, 1, 2, 2]
    with float64():
        algorithm: Any = make("fedilc-fishr", class_weights="balanced")
        model, one = build_model(SPEC, seed=0), client(labels, torch.float64)
        weights = one.balanced_weights(3)
        x, y = one.training.all()
        goal = torch.linspace(0.0, 0.1, model.layout.final.stop - model.layout.final.start)
        first = algorithm.gradient_and_variance(one, model)
        second = algorithm.variance_gradient(one, model, goal)

        parameters = list(model.parameters())
        losses = cross_entropy(model(x), y, reduction="none") * weights[y]
        mean = torch.autograd.grad(losses.mean(), parameters, retain_graph=True)
        last = list(model.head.last.parameters())
        rows = [torch.autograd.grad(loss, last, create_graph=True) for loss in losses]
        each = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
        variance = each.var(dim=0, unbiased=False)
        # v̄ is constant in the phase, and the gradient goes through the client's variance.
        by_variance = 2 * (variance.detach() - goal)
        penalty = torch.autograd.grad((by_variance * variance).sum(), parameters)
    torch.testing.assert_close(first["gradient"], torch.cat([g.reshape(-1) for g in mean]))
    torch.testing.assert_close(first["variance"], variance.detach())
    torch.testing.assert_close(second["penalty_gradient"], torch.cat([g.reshape(-1) for g in penalty]))


@worked_example("fedavg", class_weights="balanced")
def rare_classes_weigh_more(toy: Toy, p: Any) -> Tensor:
    w = toy.start
    for cohort in toy.rounds:
        ends = []
        for c in cohort:
            labels = c.y.tolist()
            of = torch.tensor([len(labels) / (len(set(labels)) * labels.count(k)) for k in range(3)])

            def slope(v: Tensor, x: Tensor, y: Tensor, of: Tensor = of) -> Tensor:
                return gradient_of(lambda at: (cross_entropy(toy.logits(at, x), y, reduction="none") * of[y]).mean(), v)

            ends.append(toy.sgd(w, c.batches, p.lr, slope))
        w = sum((c.share * end for c, end in zip(cohort, ends, strict=True)), torch.zeros_like(w))
    return w


def test_fedavg_with_class_weights_agrees_with_its_worked_example() -> None:
    from farfield.algorithms.worked_examples import worked_examples

    (example,) = [each for each in worked_examples("fedavg") if each.function is rare_classes_weigh_more]
    assert difference(example, built(example)) <= example.tolerance


def test_a_method_with_a_loss_of_its_own_that_does_not_declare_weights_is_refused() -> None:
    class Own(FedAvg):
        name = "own-loss"

        def loss(self, model: Any, batch: Any, **shared: Any) -> Tensor:
            return task_loss(model(batch.x), batch.y)

    assert "does not say" in Own.supports.to_json()["limits"]["class_weights"]["reason"]


def test_a_regression_has_no_classes_to_weigh() -> None:
    of = tuple(Domain(d.name, d.x, d.y.float()) for d in (domain("a"), domain("b"), domain("c")))
    model = SPEC.model_copy(update={"outputs": 1})
    task = Task(name="toy", kind="regression", domains=of, classes=(), model=model)
    with pytest.raises(PlanError, match="no classes to weigh; set class_weights=none"):
        make_plan(task, algorithms=["fedavg", "fediir"], settings={"class_weights": "balanced"})
