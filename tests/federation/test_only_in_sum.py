"""What is declared as needed only in sum reaches the server half only as a sum, on every engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from farfield.algorithms import AlgorithmError, FedAvg, build
from farfield.federation import SCALAR, Sends, phase
from farfield.federation.federation import FederationError, OnlyInSum, Replies, Reply
from farfield.federation.local_training import train_client
from farfield.federation.phase import local_training
from tests.toy import domains, federation, initial, lose, sent


class FedSum(FedAvg):
    """FedAvg whose server sees no single update."""

    name = "fedsum"

    class Params(FedAvg.Params):
        weighting: str = "uniform"  # type: ignore[assignment]

    @local_training(
        update=Sends("parameters", "the update", server_sees="sum", is_update=True),
        loss=Sends(SCALAR, "mean training loss"),
    )
    def train(self, client: Any, model: Any, **shared: Any) -> Any:
        return train_client(self, client, model, shared)

    @phase(rows=Sends(SCALAR, "training rows", server_sees="sum"))
    def count(self, client: Any, model: Any) -> Any:
        return {"rows": client.samples}


def fed_sum() -> FedSum:
    return FedSum(FedSum.Params(lr=0.1, batch_size=8))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_look_at_one_clients_value_is_an_error_in_the_local_engine(workers: int) -> None:
    algorithm = fed_sum()
    with federation(algorithm, domains(3), workers=workers) as fed:
        fed.begin(1, range(3))
        replies = fed.map(algorithm.train, initial().state())
        on_the_wire = sent(fed, algorithm.train, initial().state())
    _cannot_be_seen(replies)
    expected = torch.stack([values["update"] for values in on_the_wire]).double().sum(dim=0)
    torch.testing.assert_close(replies.sum("update"), expected, rtol=1e-14, atol=1e-16)


def test_a_look_at_one_clients_value_is_an_error_over_flowers_grid() -> None:
    pytest.importorskip("flwr")
    from tests.federation.engines.flower.in_process import over_grid

    algorithm = build("scaffold", {"lr": 0.1, "batch_size": 8})
    fed, _ = over_grid("scaffold", algorithm, domains(3), travelling=False)
    fed.begin(1, range(3))
    state = algorithm.start(initial().state())
    replies = fed.map(algorithm.train, state.model, control=state.control)
    _cannot_be_seen(replies, "control_change")
    assert replies.stack("update").shape == (3, len(initial().vector))


def _cannot_be_seen(replies: Replies, name: str = "update") -> None:
    assert replies.has(name)
    assert not replies.shows(name)
    with pytest.raises(OnlyInSum, match=f"'{name}' is declared with server_sees='sum'"):
        replies.stack(name)
    with pytest.raises(OnlyInSum):
        replies[0].values.get(name)
    assert replies[0].values.get("nothing", 7) == 7
    with pytest.raises(OnlyInSum):
        replies[0].values[name]
    assert name not in dict(replies[0].values)
    assert name not in replies[0].values
    with pytest.raises(OnlyInSum):
        replies.of([0]).sum(name)


def test_the_round_is_fedavgs_without_diagnostics_of_single_updates() -> None:
    algorithm, fedavg = fed_sum(), build("fedavg", {"lr": 0.1, "batch_size": 8, "weighting": "uniform"})
    after = []
    for each in (algorithm, fedavg):
        with federation(each, domains(3)) as fed:
            fed.begin(1, range(3))
            after.append(each.round(fed, each.start(initial().state())))
    torch.testing.assert_close(after[0].model.parameters, after[1].model.parameters, rtol=0, atol=1e-7)
    assert {name for name in after[1].diagnostics if name.startswith("cosine")} == {
        f"cosine of {domain.name}" for domain in domains(3)
    }
    assert set(after[0].diagnostics) == {"loss"}


def test_what_needs_single_updates_is_refused_before_anything_runs() -> None:
    with pytest.raises(AlgorithmError, match="fedomg needs each client's update, and fedsum sends only their sum"):
        FedSum(FedSum.Params(), build("fedomg"))
    with pytest.raises((AlgorithmError, ValidationError), match="set weighting=uniform"):
        FedSum(FedSum.Params(weighting="samples"))


def test_a_phase_can_ask_some_of_the_cohort_alone() -> None:
    algorithm = fed_sum()
    with federation(algorithm, domains(3)) as fed:
        fed.begin(1, range(3))
        counts = [values["rows"] for values in sent(fed, algorithm.count, initial().state())]
        some = fed.map(algorithm.count, initial().state(), among=[0, 2, 7])
    assert some.clients == (0, 2)
    assert float(some.sum("rows")) == counts[0] + counts[2]


def test_what_is_seen_one_by_one_can_be_added_up_too() -> None:
    replies = Replies(tuple(Reply(i, "d", 1, {"x": torch.tensor([float(i), 1.0])}, steps=i) for i in range(3)))
    assert replies.sum("x").tolist() == [3.0, 3.0]
    assert replies.sum("x").dtype == torch.float64
    assert replies.sum("x", own_dtype=True).dtype == torch.float32
    assert replies.steps.tolist() == [0.0, 1.0, 2.0]


def test_a_sum_that_a_client_has_no_part_in_is_named() -> None:
    replies = Replies((Reply(0, "d", 1, {"x": 1.0}), Reply(4, "d", 1, {})))
    with pytest.raises(FederationError, match="client 4 sent no 'x'"):
        replies.sum("x")


def test_a_sum_of_one_is_recorded() -> None:
    algorithm = fed_sum()
    with federation(algorithm, domains(3), quorum=0.2) as fed:
        fed.begin(1, range(3))
        lose(fed, {"count": {0, 2}})
        fed.map(algorithm.count, initial().state())
        assert [(event.kind, event.client) for event in fed.events if event.kind == "sum-of-one"] == [("sum-of-one", 1)]
        fed.events.clear()
        fed.begin(2, [1])  # a cohort of one was meant
        fed.map(algorithm.count, initial().state())
    assert fed.events == []


def test_a_rule_of_the_methods_own_needs_each_update() -> None:
    class Ruled(FedSum):
        name = "ruled"

        def rule(self, updates: Any, weights: Any, reference: Any) -> Any:
            return 2 * reference

    with pytest.raises(AlgorithmError, match="ruled's 'rule' needs each client's update"):
        Ruled(Ruled.Params())


def test_a_reply_has_the_clients_steps() -> None:
    algorithm = build("fedavg", {"batch_size": 8})
    with federation(algorithm, domains(2)) as fed:
        fed.begin(1, range(2))
        replies = fed.map(algorithm.train, initial().state())
    assert [reply.steps for reply in replies] == [4, 5]  # 32 and 39 training rows in batches of 8
