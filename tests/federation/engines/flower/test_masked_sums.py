"""Secure sums over Flower's messages: the bits of one machine, whoever leaves, and noise at the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.algorithms import build
from farfield.errors import UserError
from farfield.federation.engines.flower.masked_sums import ADVERTISE, EXCHANGES, MASK, SHARE, UNMASK, NodeSums
from farfield.federation.engines.flower.packing import unpack
from farfield.federation.federation import QuorumMissed
from tests.federation.engines.flower.in_process import Tamper, ToyResponder, over_grid, rewritten, train
from tests.toy import domains, federation, initial

SETTINGS = {"lr": 0.1, "batch_size": 8, "secure_sums": True}
METHODS = ("fedavg", "fedprox+fedyogi", "scaffold", "fedsgd", "fediir")


def on_one_machine(name: str, count: int = 4) -> Any:
    algorithm = build(name, SETTINGS)
    with federation(algorithm, domains(count)) as fed:
        return train(fed, algorithm)


def exchange(message: Message) -> str:
    return str(json.loads(str(unpack(message.content)[0]["sum"]))["exchange"])


@pytest.mark.parametrize("name", METHODS)
def test_the_same_bits_as_on_one_machine(name: str) -> None:
    algorithm = build(name, SETTINGS)
    fed, grid = over_grid(name, algorithm, domains(4), travelling=False)
    state = train(fed, algorithm)
    assert fed.events == []
    expected = on_one_machine(name)
    assert torch.equal(state.model.parameters, expected.model.parameters)
    assert state.diagnostics == expected.diagnostics
    for extra, value in expected.extras.items():
        assert torch.equal(state.extras[extra], value)
    phases = len(algorithm.phases)
    assert [exchange(m) for m in grid.sent[:16]] == [e for e in (ADVERTISE, SHARE, MASK, UNMASK) for _ in range(4)]
    assert len(grid.sent) == 3 * phases * 4 * 4


def test_a_simulation_whose_clients_are_ones_own_has_the_same_bits_without_masks() -> None:
    algorithm = build("scaffold", SETTINGS)
    fed, grid = over_grid("scaffold", algorithm, domains(4), travelling=True)
    for node in range(100, 104):  # as the nodes of a simulation, which hold nothing
        grid.nodes[node] = ToyResponder(grid.site, grid.methods)
        grid.nodes[node].open_sums = None  # type: ignore[method-assign,assignment]
    state = train(fed, algorithm)
    assert torch.equal(state.model.parameters, on_one_machine("scaffold").model.parameters)
    assert len(grid.sent) == 3 * 4


def test_validation_is_summed_over_the_same_exchanges() -> None:
    algorithm = build("fedavg", SETTINGS)
    fed, _ = over_grid("fedavg", algorithm, domains(4), travelling=False)
    found = fed.map_over(range(4), algorithm.evaluate, initial().state())
    with federation(algorithm, domains(4)) as local:
        expected = local.map_over(range(4), algorithm.evaluate, initial().state())
    assert set(found.sums) == set(expected.sums)
    assert {"loss", "accuracy", "rows", "class_rows", "auroc"} <= set(found.sums)
    for name in expected.sums:
        assert torch.equal(found.sum(name), expected.sum(name))


def leaving(client: str, stage: str) -> Tamper:
    """A client whose messages are lost from one exchange of the first sum on."""
    order = (ADVERTISE, SHARE, MASK, UNMASK)
    gone: list[str] = []

    def change(reply: Message) -> list[Message]:
        header = unpack(reply.content)[0]
        if header["client"] != client or header["round"] != 1:
            return [reply]
        gone.append("")
        return [] if len(gone) > order.index(stage) else [reply]

    return change


@pytest.mark.parametrize("stage", [ADVERTISE, SHARE, MASK, UNMASK])
@pytest.mark.usefixtures("clock_of_sleeps")
def test_a_site_that_leaves_is_left_out_of_the_sum_or_its_numbers_are_in_it(stage: str) -> None:
    algorithm = build("fedavg", SETTINGS)
    fed, _ = over_grid("fedavg", algorithm, domains(4), travelling=False, tamper=leaving("3", stage), deadline=60.0)
    fed.begin(1, range(4))
    replies = fed.map(algorithm.train, initial().state())
    counted = range(4) if stage == UNMASK else range(3)
    assert replies.clients == tuple(counted)
    with federation(algorithm, domains(4)) as local:
        local.begin(1, counted)
        expected = local.map(algorithm.train, initial().state())
    assert torch.equal(replies.sum("update"), expected.sum("update"))
    assert [event.client for event in fed.events] == ([] if stage == UNMASK else [3])


@pytest.mark.parametrize("stage", [ADVERTISE, SHARE, MASK])
@pytest.mark.usefixtures("clock_of_sleeps")
def test_a_round_that_loses_too_many_sites_is_skipped(stage: str) -> None:
    algorithm = build("fedavg", SETTINGS)

    def change(reply: Message, lost: tuple[Tamper, ...] = (leaving("2", stage), leaving("3", stage))) -> list[Message]:
        replies = [reply]
        for tamper in lost:
            replies = [kept for each in replies for kept in tamper(each)]
        return replies

    fed, _ = over_grid("fedavg", algorithm, domains(4), travelling=False, tamper=change, deadline=60.0)
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed):
        fed.map(algorithm.train, initial().state())
    assert {event.client for event in fed.events} == ({2, 3} if stage == MASK else {0, 1, 2, 3})
    fed.discard()
    fed.begin(2, range(4))
    assert len(fed.map(algorithm.train, initial().state())) == 4


@pytest.mark.usefixtures("clock_of_sleeps")
def test_a_sum_that_misses_the_quorum_is_never_unmasked() -> None:
    """Else the round after, with the same model and one site more, would show that site's update as a difference."""
    algorithm = build("fedavg", SETTINGS)
    lost = leaving("3", MASK)
    fed, grid = over_grid("fedavg", algorithm, domains(4), travelling=False, tamper=lost, deadline=60.0, quorum=1.0)
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed, match="3 clients replied, and a secure sum is over 4 to 2047"):
        fed.map(algorithm.train, initial().state())
    assert UNMASK not in {exchange(message) for message in grid.sent}


def altered(client: str, stage: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Tamper:
    seen: list[str] = []

    def tamper(reply: Message) -> list[Message]:
        header, groups = unpack(reply.content)
        if header["client"] != client:
            return [reply]
        seen.append("")
        here = (ADVERTISE, SHARE, MASK, UNMASK)[len(seen) - 1] == stage
        return [rewritten(reply, values=change(groups["values"])) if here else reply]

    return tamper


@pytest.mark.parametrize(
    ("stage", "change", "problem"),
    [
        (ADVERTISE, lambda v: {**v, "keys": v["keys"][:10]}, "'keys' has shape (10,)"),
        (SHARE, lambda v: {"sealed": v["sealed"].float()}, "'sealed' is not a tensor of torch.uint8"),
        (MASK, lambda v: {"update": torch.zeros(3)}, "a secure sum needs ['masked']"),
        (MASK, lambda v: {"masked": v["masked"][1:]}, "'masked' has shape"),
    ],
)
def test_a_reply_that_does_not_fit_is_dropped_and_the_others_add_up(stage: str, change: Any, problem: str) -> None:
    algorithm = build("fedavg", SETTINGS)
    fed, _ = over_grid("fedavg", algorithm, domains(4), travelling=False, tamper=altered("1", stage, change))
    fed.begin(1, range(4))
    replies = fed.map(algorithm.train, initial().state())
    assert replies.clients == (0, 2, 3)
    assert problem in fed.events[0].message


def test_wrong_integers_of_a_site_do_not_pass_as_a_sum() -> None:
    """A site that adds the wrong masks: what is left of them is over the range by a factor of hundreds."""
    algorithm = build("fedavg", SETTINGS)
    wrong = altered("1", MASK, lambda v: {"masked": torch.randint_like(v["masked"], -(2**62), 2**62)})
    fed, _ = over_grid("fedavg", algorithm, domains(4), travelling=False, tamper=wrong)
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed, match="the masks do not cancel"):
        fed.map(algorithm.train, initial().state())


def test_a_sites_state_follows_the_message_that_ran_the_phase() -> None:
    """SCAFFOLD's control variates over five rounds, one of which is skipped after the sites have answered."""
    algorithm, other = build("scaffold", SETTINGS), build("scaffold", SETTINGS)
    fed, _ = over_grid("scaffold", algorithm, domains(4), rounds=5, travelling=False)
    with federation(other, domains(4)) as local:
        states = [algorithm.start(initial().state()), other.start(initial().state())]
        for number in range(1, 6):
            for place, (each, method) in enumerate(((fed, algorithm), (local, other))):
                each.begin(number, range(4))
                after = method.round(each, states[place])
                if number == 3:
                    each.discard()
                else:
                    states[place] = after
        assert torch.equal(states[0].model.parameters, states[1].model.parameters)
        assert torch.equal(states[0].extras["control"], states[1].extras["control"])


def test_a_node_that_takes_part_in_secure_sums_sends_nothing_unmasked() -> None:
    """Whatever a server leaves out of the message or claims about who holds the state."""
    algorithm = build("fedavg", SETTINGS)
    for travelling in (False, True):
        fed, grid = over_grid("fedavg", algorithm, domains(3), travelling=travelling)
        fed._summing = None  # a server that asks for single replies
        outcomes = list(fed._outcomes("train", initial().state(), {}, [0]))
        assert "only in a secure sum" in str(outcomes[0].problem)
        assert unpack(grid.received[0].content)[1]["values"] == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.lists(st.sampled_from(["site", "a", "b", "c", "\ud800", ""]), max_size=5)
KEYS = st.lists(st.sampled_from(["00" * 64, "zz", "", "ab" * 64]) | JSON, max_size=3)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*EXCHANGES, "other"]),
            st.fixed_dictionaries(
                {},
                optional={
                    "members": st.dictionaries(st.text(max_size=3), KEYS, max_size=4) | JSON,
                    "contributors": NAMES | JSON,
                    "survivors": NAMES | JSON,
                    "signatures": JSON,
                },
            ),
            st.sampled_from([torch.zeros(2, 82, dtype=torch.uint8), torch.zeros(3), torch.zeros(0), 1.0]) | JSON,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_garbage_about_a_sum_is_refused_and_nothing_else_happens(messages: list[Any]) -> None:
    """Whatever a server says: an answer with new keys, or a refusal; never a share, a masked number or a crash."""
    node = ToyResponder(None, None)  # type: ignore[arg-type]
    sums = NodeSums(node, "site", "run", least=3)
    for exchange, about, sealed in messages:
        header = {"round": 1, "phase": "train", "sum": json.dumps({"id": "x", **about, "exchange": exchange})}
        try:
            answer = sums.before_phase(header, {"model": {}, "shared": {}, "sum": {"sealed": sealed}})
        except (UserError, KeyError, TypeError, ValueError):  # what `run_requested_phase` answers with a problem
            continue
        assert answer is not None
        assert set(answer) == {"keys", "signature"}
    for line in ("[" * 100_000, "null", "[]", '"', '{"id": 1}', '{"exchange": []}'):
        with pytest.raises(UserError):
            sums.before_phase({"round": 1, "phase": "train", "sum": line}, {})
