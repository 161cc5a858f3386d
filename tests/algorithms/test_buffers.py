"""Running statistics: averaged by sample count or left alone, and never touched by what is made for parameters."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from farfield.algorithms import FedAvg, State, build
from farfield.federation.federation import Replies
from farfield.models import ModelSpec
from tests.toy import SPEC, domains, federation, initial

AVERAGE = SPEC.model_copy(update={"norm": "average"})


def watched_round(algorithm: FedAvg, spec: ModelSpec, rounds: int = 2) -> tuple[State, Replies, dict[int, Any]]:
    """The state after some rounds, what the clients sent in the last one, and what they keep."""
    seen: list[Replies] = []

    class Spy:
        def __init__(self, fed: Any) -> None:
            self.fed, self.clients = fed, fed.clients

        def map(self, *args: Any, **shared: Any) -> Replies:
            seen.append(self.fed.map(*args, **shared))
            return seen[-1]

    with federation(algorithm, domains(3), spec) as fed:
        state = algorithm.start(initial(spec).state())
        for number in range(1, rounds + 1):
            fed.begin(number, [0, 1, 2])
            state = algorithm.round(Spy(fed), state)
        return state, seen[-1], fed.states


def sample_weighted(sent: Replies) -> Tensor:
    """Written out: in float64, client after client, then rounded once."""
    total = torch.zeros(len(sent[0].values["buffers"]), dtype=torch.float64)
    for reply, rows in zip(sent, (32, 39, 45), strict=True):
        assert reply.samples == rows
        total += reply.values["buffers"].double() * (rows / 116)
    return total.float()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"weighting": "uniform"}),
        ("fedavg", {"server_lr": 0.1}),
        ("fedadam", {}),
        ("fedadam", {"server_weight_decay": 0.5, "server_bias_correction": True}),
        ("fedyogi", {}),
        ("fedavgm", {"server_momentum": 0.9}),
        ("fedprox+fedadam", {}),
        ("scaffold+fedavgm", {}),
        ("fedsgd", {"server_optimizer": "adam"}),
    ],
)
def test_averaged_statistics_are_the_sample_weighted_mean_whatever_the_server_does(
    name: str, settings: dict[str, Any]
) -> None:
    state, sent, kept = watched_round(build(name, {"batch_size": 8, **settings}), AVERAGE)
    assert torch.equal(state.model.buffers, sample_weighted(sent))
    assert not torch.equal(state.model.buffers, initial(AVERAGE).buffer_vector)
    assert all(tensor.numel() in (1, len(state.model.parameters)) for tensor in state.slots.values())
    assert all("buffers" not in own for own in kept.values())


def test_a_rule_made_for_parameters_sees_and_changes_parameters_only() -> None:
    class Ruling(FedAvg):
        shapes: ClassVar[list[tuple[int, ...]]] = []

        def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> Tensor:
            self.shapes.append(tuple(updates.shape))
            return -100 * reference

    state, sent, _ = watched_round(Ruling(Ruling.Params(batch_size=8)), AVERAGE, rounds=1)
    assert Ruling.shapes == [(3, len(initial(AVERAGE).vector))]
    assert torch.equal(state.model.buffers, sample_weighted(sent))


def test_each_round_starts_from_the_averaged_statistics() -> None:
    first, _, _ = watched_round(build("fedavg", {"batch_size": 8}), AVERAGE, rounds=1)
    algorithm = build("fedavg", {"batch_size": 0, "local_steps": 1, "lr": 1e-9})
    with federation(algorithm, domains(3), AVERAGE) as fed:
        fed.begin(2, [0])
        (reply,) = fed.map(algorithm.train, first.model)
    # One step with torch's momentum 0.1 moves them a tenth of the way from the mean to the batch.
    moved = (reply.values["buffers"] - first.model.buffers).abs().max()
    from_scratch = (reply.values["buffers"] - initial(AVERAGE).buffer_vector).abs().max()
    assert 0 < float(moved) < float(from_scratch)


def test_local_statistics_stay_with_their_client_and_are_never_sent() -> None:
    spec = SPEC.model_copy(update={"norm": "local"})
    state, sent, kept = watched_round(build("fedavg", {"batch_size": 8}), spec)
    assert all(set(r.values) == {"update", "loss"} for r in sent)
    assert torch.equal(state.model.buffers, initial(spec).buffer_vector)
    own = [kept[c]["buffers"] for c in range(3)]
    assert not any(torch.equal(b, initial(spec).buffer_vector) for b in own)
    assert not torch.equal(own[0], own[1])


def test_a_client_with_local_statistics_goes_on_from_its_own() -> None:
    spec = SPEC.model_copy(update={"norm": "local"})
    algorithm = build("fedavg", {"batch_size": 8})
    with federation(algorithm, domains(2), spec) as fed:
        state = algorithm.start(initial(spec).state())
        fed.begin(1, [0, 1])
        fed.map(algorithm.train, state.model)
        own = fed.map_over([0], algorithm.evaluate, state.model)[0].values["loss"]
        fed.states = {**fed.states, 0: {"buffers": torch.cat([torch.full((6,), 3.0), torch.full((6,), 9.0)])}}
        other = fed.map_over([0], algorithm.evaluate, state.model)[0].values["loss"]
        fed.begin(2, [0])
        fed.map(algorithm.train, state.model)
        means = fed.states[0]["buffers"][:6]
    assert own != other
    # Four steps from 3 with momentum 0.1: 0.9⁴·3 = 1.97, plus a little of each batch.
    assert ((means - 3 * 0.9**4).abs() < 0.6).all()


@pytest.mark.parametrize("norm", ["freeze", "group", "none"])
def test_other_policies_send_no_statistics(norm: str) -> None:
    spec = SPEC.model_copy(update={"norm": norm})
    state, sent, kept = watched_round(build("fedadam", {"batch_size": 8}), spec)
    assert all(set(r.values) == {"update", "loss"} for r in sent)
    assert torch.equal(state.model.buffers, initial(spec).buffer_vector)
    assert kept == {}
