"""FedIIR against a worked example, finite differences and what the paper and the published code say."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from farfield.algorithms import build
from farfield.federation.client import Batch, Client, Rows
from farfield.federation.engines.local import LocalFederation
from farfield.federation.federation import Replies, Reply
from farfield.models import Model, ModelSpec, ModelState, build_model, task_loss
from farfield.tasks.task import Domain
from tests.toy import SPEC, domains, federation, initial, sent

# golden: fediir_penalty
Z = [
    [0.001, 0.299, -0.274],
    [-0.891, -0.455, -0.992],
    [0.06, 1.34, -0.492],
    [-0.62, 0.49, 0.357],
    [0.105, -0.93, -0.029],
]
Y = [0, 1, 3, 2, 1]
W = [[0.487, -0.941, -0.32], [-1.331, -0.903, -1.289], [-0.165, -0.887, 0.19], [0.11, -0.131, -1.762]]
B = [-0.162, -0.015, 0.034, -0.459]
TARGET_W = [[-0.048, -0.098, -0.081], [0.106, -0.081, -0.003], [0.088, -0.058, -0.011], [0.011, 0.006, -0.123]]
TARGET_B = [0.008, 0.136, -0.155, 0.086]
LOSS_PAPER, LOSS_CODE = 0.9787455662418484, 0.9812886156033094
TOTAL_W_PAPER = [
    [-0.01979695767495886, -0.05986265399633431, 0.030941901346795787],
    [-0.013970055217172886, 0.2724313073817245, 0.04540723589377227],
    [0.07900240599189808, -0.08448675730640945, -0.08548517185111132],
    [-0.04523539309976629, -0.12808189607898077, 0.009136034610543279],
]
TOTAL_W_CODE = [
    [-0.019760022960027906, -0.05989055101474007, 0.030924032743614167],
    [-0.013863143239464542, 0.2733757668973016, 0.04547037349006058],
    [0.07890798830740411, -0.08463177290067625, -0.08569163410672988],
    [-0.04528482210791163, -0.12885344298188528, 0.009297227873055154],
]


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def example() -> tuple[Model, Batch, torch.Tensor]:
    model = build_model(ModelSpec(featurizer="identity", input_shape=(3,), outputs=4, hidden=()), 0)
    model.vector.copy_(torch.cat([torch.tensor(W).reshape(-1), torch.tensor(B)]))
    target = torch.cat([torch.tensor(TARGET_W).reshape(-1), torch.tensor(TARGET_B)])
    return model, Batch(torch.tensor(Z), torch.tensor(Y)), target


@pytest.mark.parametrize(
    ("half", "loss", "gradient"), [(True, LOSS_PAPER, TOTAL_W_PAPER), (False, LOSS_CODE, TOTAL_W_CODE)]
)
def test_the_loss_and_its_gradient_are_the_worked_example(half: bool, loss: float, gradient: list[list[float]]) -> None:
    model, batch, target = example()
    value = build("fediir", {"gamma": 0.02, "half": half}).loss(model, batch, target=target)
    model.backward(value)
    assert float(value.detach()) == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(model.gradient[:12].view(4, 3), torch.tensor(gradient), rtol=1e-9, atol=1e-12)


def test_the_closed_form_equals_the_double_backward_for_featurizer_and_head() -> None:
    spec = ModelSpec(featurizer="mlp", input_shape=(4,), outputs=3, hidden=(6,))
    x, y = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3
    model = build_model(spec, 0)
    target = torch.linspace(-1, 1, model.layout.head.stop - model.layout.head.start)
    model.backward(build("fediir", {"gamma": 0.7}).loss(model, Batch(x, y), target=target))
    closed = model.gradient.clone()
    risk = torch.nn.functional.cross_entropy(model(x), y)
    parts = torch.autograd.grad(risk, list(model.head.parameters()), create_graph=True)
    model.backward(risk + 0.35 * (torch.cat([p.reshape(-1) for p in parts]) - target).square().sum())
    torch.testing.assert_close(closed, model.gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_training_is_the_double_backward_step_by_step(head: str, outputs: int, bias: bool) -> None:
    """Nine rows in batches of four: what is made once a round meets a short batch, and weights that have moved."""
    spec = ModelSpec(
        featurizer="mlp", input_shape=(4,), outputs=outputs, hidden=(5,), head=head, head_hidden=4, head_bias=bias
    )
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    domain = Domain("d", x, torch.arange(9) % max(outputs, 2))
    rows = Rows({"d": domain}, [("d", torch.arange(9))])
    algorithm = build("fediir", {"gamma": 0.7, "lr": 0.5, "batch_size": 4, "local_epochs": 2})
    model = build_model(spec, 1)
    target = torch.linspace(-1, 1, model.layout.head.stop - model.layout.head.start)
    start = model.vector.clone()
    sent = algorithm.train(Client(0, "d", "d", rows, rows, seed=0, round=1, phase="train"), model, target=target)
    model.vector.copy_(start)
    for batch in Client(0, "d", "d", rows, rows, seed=0, round=1, phase="train").batches(4, epochs=2):
        risk = task_loss(model(batch.x), batch.y)
        parts = torch.autograd.grad(risk, list(model.head.parameters()), create_graph=True)
        penalised = risk + 0.35 * (torch.cat([p.reshape(-1) for p in parts]) - target).square().sum()
        whole = torch.autograd.grad(penalised, list(model.parameters()))
        model.vector.sub_(torch.cat([g.reshape(-1) for g in whole]), alpha=0.5)
    torch.testing.assert_close(sent["update"], model.vector - start, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_gradient_equals_finite_differences_for_linear_and_mlp_heads(head: str, outputs: int) -> None:
    spec = ModelSpec(featurizer="mlp", input_shape=(4,), outputs=outputs, hidden=(5,), head=head, head_hidden=4)
    model = build_model(spec, 1)
    batch = Batch(torch.randn(9, 4, generator=torch.Generator().manual_seed(2)), torch.arange(9) % max(outputs, 2))
    target = torch.full((model.layout.head.stop - model.layout.head.start,), 0.3)
    fediir = build("fediir", {"gamma": 2.0})
    model.backward(fediir.loss(model, batch, target=target))
    gradient, here = model.gradient.clone(), model.vector.clone()
    direction = torch.randn(len(here), generator=torch.Generator().manual_seed(3))
    values = []
    for sign in (1, -1):
        model.vector.copy_(here + sign * 1e-6 * direction)
        values.append(float(fediir.loss(model, batch, target=target).detach()))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(gradient @ direction), rel=1e-6)


def test_the_target_is_a_moving_average_from_zero() -> None:
    """golden: fediir_ema; the first target is 0.05 of the first gradient."""
    torch.set_default_dtype(torch.float32)
    algorithm = build("fediir", {"lr": 0.1, "batch_size": 8})
    with federation(algorithm, domains(2)) as fed:
        state = algorithm.start(initial().state())
        fed.begin(1, [0, 1])
        gradients = torch.stack([values["gradient"] for values in sent(fed, algorithm.head_gradient, state.model)])
        after = algorithm.round(fed, state)
        torch.testing.assert_close(after.target, 0.05 * gradients.mean(dim=0), rtol=1e-5, atol=1e-7)
        fed.begin(2, [0, 1])
        second = torch.stack([values["gradient"] for values in sent(fed, algorithm.head_gradient, after.model)]).mean(0)
        again = algorithm.round(fed, after)
        torch.testing.assert_close(again.target, 0.95 * after.target + 0.05 * second, rtol=1e-5, atol=1e-7)


def test_the_published_average_counts_mini_batches_and_the_papers_counts_clients() -> None:
    """golden: fediir_global_gradient_average, in kind: clients with three batches and with one."""
    torch.set_default_dtype(torch.float32)
    a, b = domains(2)
    chosen = [Domain("a", a.x[:30], a.y[:30]), Domain("b", b.x[:10], b.y[:10])]
    means = {}
    for average in ("clients", "batches"):
        algorithm = build("fediir", {"batch_size": 8, "gradient_average": average, "upsilon": 0.0})
        with federation(algorithm, chosen) as fed:
            fed.begin(1, [0, 1])
            state = algorithm.start(initial().state())
            replies = sent(fed, algorithm.head_gradient, state.model)
            target = algorithm.round(fed, state).target
        assert [values["batches"] for values in replies] == ([1, 1] if average == "clients" else [3, 1])
        passes = [_head_gradients(fed, number, average) for number in (0, 1)]
        for values, naive in zip(replies, passes, strict=True):
            torch.testing.assert_close(values["gradient"], torch.stack(naive).sum(dim=0), rtol=1e-5, atol=1e-6)
            length = float(torch.stack(naive).mean(dim=0).square().sum())
            assert values["square"] == pytest.approx(len(naive) * length, rel=1e-4)
        together = [gradient for naive in passes for gradient in naive]
        torch.testing.assert_close(target, torch.stack(together).mean(dim=0), rtol=1e-5, atol=1e-7)
        means[average] = target
    assert not torch.allclose(means["clients"], means["batches"], rtol=1e-3)


def _head_gradients(fed: LocalFederation, number: int, average: str) -> list[Tensor]:
    """By autograd and one by one: the gradients of the head that the mean is to be taken of."""
    client = fed._population.client(number, seed=0, round=1, phase="head_gradient", state={})
    whole = client.training.take(torch.arange(client.samples))
    gradients = []
    for x, y in [whole] if average == "clients" else client.batches(8):
        model = initial()
        model.backward(torch.nn.functional.cross_entropy(model(x), y))
        gradients.append(model.gradient[model.layout.head].clone())
    return gradients


@pytest.mark.parametrize(
    ("gradients", "batches", "mean"),
    [([(32 * 1 + 32 * 2 + 8 * 3) / 72, 10.0], [1, 1], 5.833333333333333), ([2.0, 10.0], [3, 1], 4.0)],
)
def test_the_server_weighs_gradients_as_in_the_worked_example(
    gradients: list[float], batches: list[int], mean: float
) -> None:
    """golden: fediir_global_gradient_average, the paper's mean over clients and the code's over mini-batches."""
    torch.set_default_dtype(torch.float32)

    class Sent:
        def map(self, phase: Callable[..., object], model: ModelState, **shared: Tensor) -> Replies:
            if phase.__name__ == "train":
                self.target = shared["target"]
            values = [
                {
                    "gradient": torch.tensor([b * g]),
                    "batches": b,
                    "square": b * g * g,
                    "update": torch.zeros(1),
                    "loss": 0.0,
                }
                for g, b in zip(gradients, batches, strict=True)
            ]
            return Replies(tuple(Reply(i, "d", 1, v) for i, v in enumerate(values)))

    fed = Sent()
    algorithm = build("fediir", {"upsilon": 0.0})
    after = algorithm.round(fed, algorithm.start(ModelState(torch.zeros(1), torch.zeros(0))))  # type: ignore[arg-type]
    assert float(fed.target) == pytest.approx(mean, rel=1e-6)
    spread = sum(b * (g - mean) ** 2 for g, b in zip(gradients, batches, strict=True)) / sum(batches)
    assert after.diagnostics["alignment_penalty"] == pytest.approx(spread, rel=1e-5)


def test_a_look_at_the_gradient_is_no_local_step_and_no_batch_of_one_reaches_batch_norm() -> None:
    torch.set_default_dtype(torch.float32)
    spec = SPEC.model_copy(update={"norm": "average"})
    whole = domains(1)[0]
    chosen = [Domain("a", whole.x[:31], whole.y[:31])]  # 25 to train on: three batches of 8, and one row
    steps = {}
    for average in ("clients", "batches"):
        algorithm = build("fediir", {"batch_size": 8, "gradient_average": average})
        with federation(algorithm, chosen, spec) as fed:
            fed.begin(1, [0])
            algorithm.round(fed, algorithm.start(initial(spec).state()))
            assert not fed.events
            steps[average] = fed.traffic.local_steps
    assert steps == {"clients": 3, "batches": 3}


def test_the_full_batch_gradient_is_autograds() -> None:
    torch.set_default_dtype(torch.float32)
    algorithm = build("fediir")
    with federation(algorithm, domains(1)) as fed:
        model = initial()
        fed.begin(1, [0])
        (values,) = sent(fed, algorithm.head_gradient, model.state())
        client = fed._population.client(0, seed=0, round=1, phase="x", state={})
        x, y = client.training.take(torch.arange(client.samples))
        model.backward(torch.nn.functional.cross_entropy(model(x), y))
    torch.testing.assert_close(values["gradient"], model.gradient[model.layout.head], rtol=1e-5, atol=1e-7)
