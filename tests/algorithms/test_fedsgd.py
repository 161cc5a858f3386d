"""FedSGD: one full-batch gradient a client."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from farfield.algorithms import build
from farfield.models import ModelSpec
from tests.toy import SPEC, domain, domains, federation, initial, population


def after_rounds(name: str, spec: ModelSpec, rounds: int, **settings: object) -> torch.Tensor:
    algorithm = build(name, settings)
    with federation(algorithm, domains(3), spec) as fed:
        state = algorithm.start(initial(spec).state())
        for number in range(1, rounds + 1):
            fed.begin(number, [0, 1, 2])
            state = algorithm.round(fed, state)
    return torch.cat([state.model.parameters, state.model.buffers])


@pytest.mark.parametrize("norm", ["none", "average", "freeze", "group"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedsgd_is_fedavg_with_one_full_batch_step(norm: str, weighting: str) -> None:
    spec = SPEC.model_copy(update={"norm": norm})
    one = after_rounds("fedsgd", spec, 3, lr=0.2, weighting=weighting)
    other = after_rounds("fedavg", spec, 3, lr=0.2, weighting=weighting, batch_size=0, local_steps=1)
    assert not torch.allclose(one, torch.cat([initial(spec).vector, initial(spec).buffer_vector]), atol=1e-3)
    torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


def test_the_step_is_down_the_weighted_mean_of_the_clients_gradients() -> None:
    algorithm = build("fedsgd", {"lr": 0.2})
    chosen = domains(2)
    with federation(algorithm, chosen) as fed:
        fed.begin(1, [0, 1])
        after = algorithm.round(fed, algorithm.start(initial().state()))
        assert (fed.traffic.local_steps, fed.traffic.examples) == (2, 32 + 39)
    model = initial()
    people = population(chosen)
    risk = torch.zeros(())
    for number, (d, rows) in enumerate(zip(chosen, (32, 39), strict=True)):
        kept = people.client(number, seed=0, round=1, phase="full_gradient", state={}).training.rows_of(d.name)
        assert len(kept) == rows
        risk = risk + rows / 71 * F.cross_entropy(model(d.x[kept]), d.y[kept])
    risk.backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(after.model.parameters, initial().vector - 0.2 * gradient, rtol=0, atol=1e-6)
    assert after.diagnostics["loss"] == pytest.approx(float(risk.detach()), rel=1e-6)


def test_a_client_with_more_rows_than_one_pass_holds_gives_the_gradient_of_all_of_them() -> None:
    large = domain("large", rows=3000)
    algorithm = build("fedsgd")
    with federation(algorithm, [large]) as fed:
        fed.begin(1, [0])
        (reply,) = fed.map(algorithm.full_gradient, initial().state())  # type: ignore[attr-defined]
    rows = population([large]).client(0, seed=0, round=1, phase="full_gradient", state={}).training.rows_of("large")
    assert len(rows) == 2400
    model = initial()
    loss = F.cross_entropy(model(large.x[rows]), large.y[rows])
    model.backward(loss)
    torch.testing.assert_close(reply.values["gradient"], model.gradient, rtol=0, atol=1e-6)
    assert reply.values["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
