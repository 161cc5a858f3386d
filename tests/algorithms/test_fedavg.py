"""FedAvg through its class: golden means, local training, validation. Literals from golden.json, 'fedavg'."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farfield.algorithms import Aggregate, FedAvg, build
from farfield.reproducibility.randomness import generator
from tests.algorithms.linear import SPEC, linear, replies, site, weights
from tests.toy import SPEC as TOY
from tests.toy import domains, federation, initial, population

PARAMS = [[1.0, 2.0], [3.0, -2.0], [0.0, 1.0]]
GOLDEN = {"samples": [0.9999999999999999, 0.2], "uniform": [1.3333333333333333, 0.3333333333333333]}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_mean_of_three_clients_is_golden(weighting: str) -> None:
    algorithm = build("fedavg", {"weighting": weighting})
    sent = replies(*({"update": torch.tensor(p), "loss": float(i)} for i, p in enumerate(PARAMS)), samples=[10, 30, 60])
    aggregate = algorithm.aggregate(sent)
    assert aggregate.direction.tolist() == pytest.approx(GOLDEN[weighting], abs=1e-15)
    assert aggregate.buffers is None
    loss = 0.1 * 0 + 0.3 * 1 + 0.6 * 2 if weighting == "samples" else 1.0
    assert aggregate.diagnostics["loss"] == pytest.approx(loss)
    after = algorithm.start(weights(0.0, 0.0)).step(aggregate)
    assert after.model.parameters.tolist() == pytest.approx(GOLDEN[weighting], abs=1e-15)
    assert after.round == 1


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_whole_round_gives_the_golden_mean(weighting: str) -> None:
    # 12, 37 and 75 rows leave 10, 30 and 60 for training; a step of size 1 along −p goes from 0 to p.
    sites = [site(n, [-v for v in p], rows) for n, p, rows in zip("abc", PARAMS, (12, 37, 75), strict=True)]
    algorithm = linear("fedavg", lr=1.0, batch_size=0, weighting=weighting)
    with federation(algorithm, sites, SPEC) as fed:
        fed.begin(1, [0, 1, 2])
        after = algorithm.round(fed, algorithm.start(weights(0.0, 0.0)))
    assert after.model.parameters.tolist() == pytest.approx(GOLDEN[weighting], abs=1e-15)


@pytest.mark.usefixtures("double")
def test_the_server_rate_scales_the_mean_update() -> None:
    algorithm = build("fedavg", {"server_lr": 0.5})
    after = algorithm.start(weights(1.0, 1.0)).step(Aggregate(torch.tensor([2.0, -4.0])))
    assert after.model.parameters.tolist() == [2.0, -1.0]


@pytest.mark.usefixtures("double")
def test_an_update_is_the_way_from_the_broadcast_model_and_the_loss_its_mean_over_the_steps() -> None:
    algorithm = linear("fedavg", lr=0.1, batch_size=1, local_steps=3)
    with federation(algorithm, [site("a", [1.0, -2.0], rows=4)], SPEC) as fed:
        fed.begin(1, [0])
        (reply,) = fed.map(algorithm.train, weights(5.0, 5.0))
    assert reply.values["update"].tolist() == pytest.approx([-0.3, 0.6])
    # w·x at (5, 5), (4.9, 5.2), (4.8, 5.4)
    assert reply.values["loss"] == pytest.approx((-5.0 - 5.5 - 6.0) / 3)
    assert set(reply.values) == {"update", "loss"}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_local_training_is_torchs_own_on_the_clients_batches(optimizer: str) -> None:
    settings = {"lr": 0.05, "batch_size": 8, "local_epochs": 2, "weight_decay": 0.01, "optimizer": optimizer}
    if optimizer == "sgd":
        settings["momentum"] = 0.9
    algorithm = build("fedavg", settings)
    chosen = domains(2)
    with federation(algorithm, chosen) as fed:
        fed.begin(3, [0, 1])
        sent = fed.map(algorithm.train, initial().state())

    people = population(chosen)
    for number, domain in enumerate(chosen):
        rows = people.client(number, seed=0, round=3, phase="train", state={}).training.rows_of(domain.name)
        x, y = domain.x[rows], domain.y[rows]
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        nn.utils.vector_to_parameters(initial().vector, net.parameters())
        steps = (
            torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
            if optimizer == "sgd"
            else torch.optim.Adam(net.parameters(), lr=0.05, weight_decay=0.01)
        )
        shuffle = generator(0, 3, domain.name, "train", "batches")
        losses = []
        for _ in range(2):
            for index in torch.randperm(len(y), generator=shuffle).split(8):
                steps.zero_grad()
                loss = F.cross_entropy(net(x[index]), y[index])
                loss.backward()
                steps.step()
                losses.append(float(loss.detach()))
        moved = nn.utils.parameters_to_vector(net.parameters()).detach() - initial().vector
        torch.testing.assert_close(sent[number].values["update"], moved, rtol=0, atol=2e-6)
        assert sent[number].values["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_validation_measures_the_broadcast_model_on_the_clients_validation_rows() -> None:
    algorithm = FedAvg()
    chosen = domains(2)
    with federation(algorithm, chosen) as fed:
        measured = fed.map_over([0, 1], algorithm.evaluate, initial().state())
        assert (fed.traffic.local_steps, fed.states) == (0, {})
    people = population(chosen)
    for number, domain in enumerate(chosen):
        rows = people.client(number, seed=0, round=0, phase="evaluate", state={}).validation.rows_of(domain.name)
        logits = initial()(domain.x[rows]).detach()
        values = measured[number].values
        assert values["rows"] == len(rows) == (8, 9)[number]
        assert values["loss"] == pytest.approx(float(F.cross_entropy(logits, domain.y[rows])), rel=1e-6)
        assert values["accuracy"] == float((logits.argmax(1) == domain.y[rows]).double().mean())


def test_a_state_is_never_changed_in_place() -> None:
    algorithm = build("fedadam", {"batch_size": 8})
    with federation(algorithm, domains(2)) as fed:
        before = algorithm.start(initial().state())
        hashed = before.model.sha256()
        fed.begin(1, [0, 1])
        after = algorithm.round(fed, before)
        kept = {name: t.clone() for name, t in after.slots.items()}
        fed.begin(2, [0, 1])
        algorithm.round(fed, after)
    assert before.model.sha256() == hashed
    assert (before.round, after.round) == (0, 1)
    assert dict(before.slots) == {}
    assert all(torch.equal(after.slots[name], t) for name, t in kept.items())


def test_a_state_gives_its_extras_by_name_and_names_what_it_has() -> None:
    state = build("scaffold").start(initial(TOY).state())
    assert torch.equal(state.control, torch.zeros(len(initial(TOY).vector)))
    with pytest.raises(AttributeError, match=r"the state has no 'target'; it keeps \['control'\]"):
        _ = state.target
    kept = state.keep({"loss": 1.0}, control=torch.ones(3))
    assert (kept.round, kept.control.tolist(), kept.diagnostics["loss"]) == (1, [1.0] * 3, 1.0)
    assert torch.equal(kept.model.parameters, state.model.parameters)
