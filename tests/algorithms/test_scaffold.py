"""SCAFFOLD through its class. Literals from golden.json, 'scaffold': two of five clients, K = 4, rate 0.1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from farfield.algorithms import Local, build
from tests.algorithms.linear import SPEC, linear, site, weights
from tests.toy import domains, federation, initial

C = [0.1, -0.1]
C_I = [[0.2, 0.0], [0.0, -0.3]]
Y = [[0.6, 1.2], [0.9, 0.5]]
C_I_NEW = [[1.1, -0.3999999999999999], [0.14999999999999994, 1.05]]
X_NEW = [0.75, 0.85]
C_NEW = [0.31000000000000005, 0.09000000000000002]


@pytest.mark.usefixtures("double")
def test_one_local_step_from_x_is_golden() -> None:
    algorithm = linear("scaffold", lr=0.1, batch_size=0, local_steps=1)
    with federation(algorithm, [site("a", [0.2, 0.1])], SPEC) as fed:
        fed.states = {0: {"control": torch.tensor(C_I[0])}}
        fed.begin(1, [0])
        (reply,) = fed.map(algorithm.train, weights(1.0, 1.0), control=torch.tensor(C))
    y = 1.0 + reply.values["update"]
    assert y.tolist() == pytest.approx([0.99, 1.0], abs=1e-15)


@pytest.mark.usefixtures("double")
def test_a_round_with_two_of_five_clients_is_golden() -> None:
    # With a linear risk all K steps have one gradient g, and y = x − K·lr·(g − c_i + c) gives g for the golden y.
    sites = [site(name, gradient) for name, gradient in zip("ab", C_I_NEW, strict=True)]
    sites += [site(name, [9.0, 9.0]) for name in "cde"]
    algorithm = linear("scaffold", lr=0.1, batch_size=0, local_steps=4)
    with federation(algorithm, sites, SPEC) as fed:
        fed.states = {i: {"control": torch.tensor(c)} for i, c in enumerate(C_I)}
        before = replace(algorithm.start(weights(1.0, 1.0)), extras={"control": torch.tensor(C)})
        fed.begin(1, [0, 1])
        replies = fed.map(algorithm.train, before.model, control=before.control)
        assert [(1.0 + u).tolist() for u in replies.stack("update")] == [pytest.approx(y, abs=1e-14) for y in Y]
        fed.states = {i: {"control": torch.tensor(c)} for i, c in enumerate(C_I)}
        after = algorithm.round(fed, before)
        own = {client: kept["control"].tolist() for client, kept in fed.states.items()}
    assert own == {i: pytest.approx(c, abs=1e-14) for i, c in enumerate(C_I_NEW)}
    assert after.model.parameters.tolist() == pytest.approx(X_NEW, abs=1e-14)
    assert after.control.tolist() == pytest.approx(C_NEW, abs=1e-14)
    assert before.control.tolist() == C


@pytest.mark.usefixtures("double")
def test_the_correction_is_the_gradient_of_the_penalty() -> None:
    algorithm = build("scaffold")
    shared = {"control": torch.tensor(C), "own_control": torch.tensor(C_I[0])}
    local = Local(torch.tensor([2.0, 3.0]), torch.zeros(2), shared)
    gradient = torch.tensor([0.2, 0.1])
    algorithm.adjust(gradient, local)
    assert gradient.tolist() == pytest.approx([0.1, 0.0], abs=1e-15)
    assert float(algorithm.penalty(local)) == pytest.approx(2 * (0.1 - 0.2) + 3 * (-0.1 - 0.0))


def test_the_servers_control_is_the_mean_of_all_clients_controls() -> None:
    algorithm = build("scaffold", {"batch_size": 8})
    with federation(algorithm, domains(4)) as fed:
        state = algorithm.start(initial().state())
        for number, cohort in enumerate(([0, 1], [1, 2], [0, 2]), start=1):
            fed.begin(number, cohort)
            state = algorithm.round(fed, state)
        own = [fed.states[c]["control"] if c in fed.states else torch.zeros_like(state.control) for c in range(4)]
    assert float(state.control.norm()) > 0.01
    torch.testing.assert_close(state.control, torch.stack(own).mean(0), rtol=0, atol=1e-6)


def test_a_clients_control_is_the_mean_gradient_it_saw() -> None:
    """In the first round c = c_i = 0, so c_i⁺ is the mean of the K mini-batch gradients along the way."""
    algorithm = build("scaffold", {"batch_size": 8, "lr": 0.05})
    plain = build("fedavg", {"batch_size": 8, "lr": 0.05})
    with federation(algorithm, domains(2)) as fed, federation(plain, domains(2)) as fed_plain:
        for each in (fed, fed_plain):
            each.begin(1, [0, 1])
        algorithm.round(fed, algorithm.start(initial().state()))
        updates = fed_plain.map(plain.train, initial().state())
    for client, steps in ((0, 4), (1, 5)):
        gradient = -updates[client].values["update"] / (steps * 0.05)
        torch.testing.assert_close(fed.states[client]["control"], gradient, rtol=0, atol=1e-6)


def test_a_client_whose_reply_is_lost_keeps_its_control_and_the_server_does_not_count_it() -> None:
    algorithm = linear("scaffold", lr=0.1, batch_size=0, local_steps=2)
    sites = [site("a", [1.0, 0.0]), site("b", [float("nan"), 0.0])]
    with federation(algorithm, sites, SPEC) as fed:
        fed.begin(1, [0, 1])
        after = algorithm.round(fed, algorithm.start(weights(0.0, 0.0)))
        assert set(fed.states) == {0}
        assert [(e.kind, e.client) for e in fed.events] == [("reply-dropped", 1), ("sum-of-one", 0)]
    assert after.control.tolist() == [0.5, 0.0]  # (1/N)·Δc_0 with N = 2
    torch.testing.assert_close(after.model.parameters, torch.tensor([-0.2, 0.0]))
