"""The two ends of the table: ERM on the pooled rows, and every client alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farfield.algorithms import State, build
from farfield.models import ModelSpec, ModelState
from farfield.reproducibility.randomness import generator
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain
from tests.toy import SPEC, domains, federation, initial

ROUNDS = 3


def trained(name: str, chosen: list[Domain], spec: ModelSpec = SPEC, **settings: object) -> tuple[State, list[float]]:
    """The state at the end, and each client's validation loss."""
    algorithm = build(name, {"batch_size": 8, **settings})
    with federation(algorithm, chosen, spec) as fed:
        state = algorithm.start(initial(spec).state())
        for number in range(1, ROUNDS + 1):
            fed.begin(number, range(fed.clients))
            state = algorithm.round(fed, state)
        measured = fed.map_over(range(fed.clients), algorithm.evaluate, state.model)
    return state, [float(r.values["loss"]) for r in measured]


def own_models(state: State) -> list[ModelState]:
    return build("local-only").models(state)


@pytest.mark.parametrize("batch_size", [0, 16])
def test_erm_is_plain_sgd_on_the_pooled_rows(batch_size: int) -> None:
    chosen = domains(3)
    state, _ = trained("erm", chosen, lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=batch_size)

    (pooled,) = make_clients(chosen, partition=Partition(kind="pooled"), validation=0.2, seed=0, kind="classification")
    rows = dict(pooled.train)
    x = torch.cat([d.x[rows[d.name]] for d in chosen])
    y = torch.cat([d.y[rows[d.name]] for d in chosen])
    assert len(y) == 32 + 39 + 45
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.utils.vector_to_parameters(initial().vector, net.parameters())
    for number in range(1, ROUNDS + 1):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        order = torch.randperm(len(y), generator=generator(0, number, "pooled", "train", "batches"))
        for index in order.split(batch_size or len(y)):
            optimizer.zero_grad()
            F.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
    expected = nn.utils.parameters_to_vector(net.parameters()).detach()
    assert float((expected - initial().vector).norm()) > 0.05
    torch.testing.assert_close(state.model.parameters, expected, rtol=0, atol=5e-6)


def test_erm_has_one_client_with_the_training_rows_of_everybody() -> None:
    algorithm = build("erm")
    with federation(algorithm, domains(3)) as fed:
        assert fed.clients == 1
        fed.begin(1, [0])
        (reply,) = fed.map(algorithm.train, initial().state())
        assert reply.samples == 32 + 39 + 45


@pytest.mark.parametrize("norm", ["none", "average", "local", "freeze"])
def test_a_client_alone_never_hears_of_the_others(norm: str) -> None:
    spec = SPEC.model_copy(update={"norm": norm})
    chosen = domains(3)
    together, losses = trained("local-only", chosen, spec)
    models = own_models(together)
    assert len(models) == 3
    for number, domain in enumerate(chosen):
        alone, (loss,) = trained("local-only", [domain], spec)
        (model,) = own_models(alone)
        assert models[number].sha256() == model.sha256()
        assert losses[number] == loss
    assert len({m.sha256() for m in models}) == 3


def test_a_client_alone_is_plain_sgd_on_its_own_rows() -> None:
    chosen = domains(2)
    state, _ = trained("local-only", chosen, lr=0.1)
    shards = make_clients(chosen, partition=Partition(), validation=0.2, seed=0, kind="classification")
    for domain, shard, model in zip(chosen, shards, own_models(state), strict=True):
        ((_, rows),) = shard.train
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        nn.utils.vector_to_parameters(initial().vector, net.parameters())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(1, ROUNDS + 1):
            order = torch.randperm(len(rows), generator=generator(0, number, domain.name, "train", "batches"))
            for index in order.split(8):
                optimizer.zero_grad()
                F.cross_entropy(net(domain.x[rows[index]]), domain.y[rows[index]]).backward()
                optimizer.step()
        expected = nn.utils.parameters_to_vector(net.parameters()).detach()
        torch.testing.assert_close(model.parameters, expected, rtol=0, atol=5e-6)


def test_a_client_alone_is_validated_with_its_own_model() -> None:
    chosen = domains(2)
    state, losses = trained("local-only", chosen)
    shards = make_clients(chosen, partition=Partition(), validation=0.2, seed=0, kind="classification")
    for domain, shard, own, measured in zip(chosen, shards, own_models(state), losses, strict=True):
        ((_, rows),) = shard.validation
        model = initial()
        at_first = float(F.cross_entropy(model(domain.x[rows]), domain.y[rows]).detach())
        model.load(own)
        at_last = float(F.cross_entropy(model(domain.x[rows]), domain.y[rows]).detach())
        assert measured == pytest.approx(at_last, rel=1e-6)
        assert measured < 0.9 * at_first


def test_the_global_model_of_local_only_never_moves() -> None:
    state, _ = trained("local-only", domains(2))
    assert torch.equal(state.model.parameters, initial().vector)
    assert state.round == ROUNDS


def test_a_client_that_sits_out_keeps_its_own_model() -> None:
    algorithm = build("local-only", {"batch_size": 8})
    with federation(algorithm, domains(3)) as fed:
        state = algorithm.start(initial().state())
        assert [m.sha256() for m in algorithm.models(state)] == [initial().state().sha256()]
        fed.begin(1, [0, 2])
        state = algorithm.round(fed, state)
        first = [m.sha256() for m in algorithm.models(state)]
        fed.begin(2, [2])
        state = algorithm.round(fed, state)
        second = [m.sha256() for m in algorithm.models(state)]
    assert len(first) == len(second) == 2
    assert second[0] == first[0]
    assert second[1] != first[1]
