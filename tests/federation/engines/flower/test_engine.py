"""The federation over Flower's Grid: the same bits as the local engine, and whatever can go wrong with a reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Array, Error, Message

from farfield.algorithms import FedAvg, build
from farfield.federation.engines.flower.engine import UNEXPECTED_REPLY, FlowerFederation, until_next_look
from farfield.federation.engines.flower.packing import packed_bytes, unpack
from farfield.federation.federation import FederationError, QuorumMissed
from farfield.federation.reply_checks import nbytes
from farfield.models import build_model, hash_states
from tests.federation.engines.flower.in_process import answered, of_client, over_grid, rewritten, spec_for, train
from tests.toy import SPEC, domains, federation

SHOWN = ["fedavg", "fediir", "fediir+fedomg", "scaffold", "fedilc-inter-geo", "fedcir", "fedloe-irm"]
where_state_is = pytest.mark.parametrize("travelling", [True, False], ids=["state travels", "state stays"])


@where_state_is
@pytest.mark.parametrize("name", SHOWN)
def test_the_same_bits_and_the_same_cost_as_the_local_engine(name: str, travelling: bool) -> None:
    algorithm = build(name, {"lr": 0.1, "batch_size": 8}, 3)
    with federation(algorithm, domains(3), spec_for(algorithm)) as local:
        expected = hash_states(algorithm.models(train(local, algorithm)))
    fed, _ = over_grid(name, algorithm, domains(3), travelling=travelling)
    assert hash_states(algorithm.models(train(fed, algorithm))) == expected
    for counted in ("bytes_up", "bytes_down", "local_steps", "examples"):
        assert getattr(fed.traffic, counted) == getattr(local.traffic, counted)
    assert fed.events == []
    assert (fed.states != {}) == (travelling and local.states != {})


@pytest.mark.parametrize("name", SHOWN)
def test_the_bytes_counted_are_those_of_the_messages(name: str) -> None:
    algorithm = build(name, {"lr": 0.1, "batch_size": 8}, 3)
    fed, grid = over_grid(name, algorithm, domains(3))
    train(fed, algorithm)
    for messages, counted in ((grid.sent, fed.traffic.bytes_down), (grid.received, fed.traffic.bytes_up)):
        weighed: dict[str, int] = {}
        for message in messages:
            phase = unpack(message.content)[0]["phase"]
            weighed[phase] = weighed.get(phase, 0) + packed_bytes(message.content)
        assert weighed == counted


def test_state_that_travels_is_not_counted_as_sent_by_the_method() -> None:
    algorithm = build("scaffold", {}, 3)
    fed, grid = over_grid("scaffold", algorithm, domains(2), travelling=True)
    train(fed, algorithm)
    states = [unpack(message.content)[1]["state"] for message in grid.received]
    assert all(states)
    over = sum(packed_bytes(m.content) for m in grid.received) - sum(map(nbytes, states))
    assert sum(fed.traffic.bytes_up.values()) == over


def to_client(number: str, change: Callable[[Message], Iterable[Message]]) -> Callable[[Message], Iterable[Message]]:
    return lambda reply: change(reply) if of_client(reply, number) else [reply]


def values_with(reply: Message, **changed: Any) -> Message:
    return rewritten(reply, values={**unpack(reply.content)[1]["values"], **changed})


def _unreadable(reply: Message) -> Message:
    message = rewritten(reply)
    data = b"\0" * 10
    message.content.array_records["tensors"]["0"] = Array("uint8", (10,), "farfield.packed", data)
    return message


def _hundred_times(reply: Message) -> Message:
    update = unpack(reply.content)[1]["values"]["update"]
    return values_with(reply, update=update.repeat(100))


BAD = {
    "NaN": (lambda r: values_with(r, update=torch.full((51,), float("nan"))), "'update' is not finite"),
    "the wrong shape": (lambda r: values_with(r, update=torch.zeros(7)), r"'update' has shape \(7,\)"),
    "the wrong dtype": (lambda r: values_with(r, update=torch.zeros(51).double()), "dtype torch.float64"),
    "a hundred times the size": (_hundred_times, r"'update' has shape \(5100,\)"),
    "something undeclared": (lambda r: values_with(r, rows=torch.ones(3)), "'rows', which the phase does not declare"),
    "nothing": (lambda r: rewritten(r, values={}), "is missing"),
    "a state that cannot be kept": (
        lambda r: rewritten(r, state={"c": 1.0}),
        "the state 'c' is a float; only tensors can be kept",
    ),
    "damage": (_unreadable, "its reply cannot be used"),
    "another run": (lambda r: rewritten(r, {"run": "other"}), "run is 'other'"),
    "another round": (lambda r: rewritten(r, {"round": 7}), "round is 7"),
    "another attempt": (lambda r: rewritten(r, {"attempt": "old"}), "attempt is 'old'"),
    "another phase": (lambda r: rewritten(r, {"phase": "evaluate"}), "phase is 'evaluate'"),
    "another client": (lambda r: rewritten(r, {"client": "0"}), "client is '0'"),
    "a count that is none": (lambda r: rewritten(r, {"samples": "many"}), "its reply cannot be used"),
    "a problem of its own": (lambda r: rewritten(r, {"problem": "the disk is full"}), "the disk is full"),
    "an error of its node": (
        lambda r: Message(Error(code=2, reason="it raised"), reply_to=answered(r)),
        "its node failed: it raised",
    ),
    "an end of its node": (
        lambda r: Message(Error(code=5, reason="Node Unavailable — no heartbeat"), reply_to=answered(r)),
        "^it was no longer connected$",
    ),
}


def fedavg() -> FedAvg:
    return build("fedavg", {"lr": 0.1, "batch_size": 8}, 4)


def ask(fed: Any, algorithm: FedAvg, round: int = 1) -> tuple[int, ...]:
    """The clients whose replies to a training phase were accepted."""
    fed.begin(round, range(fed.clients))
    return tuple(fed.map(algorithm.train, build_model(SPEC, 0).state()).clients)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_dropped_and_named_and_the_others_count(kind: str) -> None:
    change, why = BAD[kind]
    fed, _ = over_grid("fedavg", fedavg(), domains(3), tamper=to_client("1", lambda reply: [change(reply)]))
    assert ask(fed, fedavg()) == (0, 2)
    (event,) = fed.events
    assert (event.kind, event.client, event.phase, event.round) == ("reply-dropped", 1, "train", 1)
    assert re.search(why, event.message), event.message


def test_a_reply_that_comes_twice_counts_once_and_is_recorded() -> None:
    fed, _ = over_grid("fedavg", fedavg(), domains(3), tamper=to_client("1", lambda reply: [reply, reply]))
    assert ask(fed, fedavg()) == (0, 1, 2)
    assert [(event.kind, event.message, event.phase) for event in fed.events] == [
        ("reply-dropped", UNEXPECTED_REPLY, "train")
    ]


@pytest.mark.usefixtures("clock_of_sleeps")
def test_a_reply_from_a_round_before_is_recorded_and_not_used() -> None:
    held: list[Message] = []

    def late(reply: Message) -> list[Message]:
        if not held and of_client(reply, "1"):
            held.append(reply)
            return []
        return [reply]

    fed, grid = over_grid("fedavg", fedavg(), domains(3), tamper=late, deadline=60.0)
    assert ask(fed, fedavg(), round=1) == (0, 2)
    assert [event.message for event in fed.events] == ["no reply within the deadline of 60 s"]
    grid._ready += held
    assert ask(fed, fedavg(), round=2) == (0, 1, 2)
    assert [event.message for event in fed.events[1:]] == [UNEXPECTED_REPLY]


def test_a_node_that_messages_do_not_reach_is_named() -> None:
    fed, grid = over_grid("fedavg", fedavg(), domains(3))
    grid.down = {102}
    assert ask(fed, fedavg()) == (0, 1)
    assert [(e.client, e.message) for e in fed.events] == [(2, "the message could not be sent to its node")]


def test_the_deadline_allows_for_nodes_that_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, _ = over_grid("fedavg", fedavg(), domains(3), deadline=2.0, at_once=2, grace=1.0)
    monkeypatch.setattr("farfield.federation.engines.flower.engine.time.monotonic", lambda: 100.0)
    assert fed._until(3) == 105.0
    assert fed._until(2) == 103.0


def test_a_client_that_computes_past_the_deadline_is_dropped() -> None:
    slow = to_client("1", lambda reply: [rewritten(reply, {"seconds": 60.5})])
    fed, _ = over_grid("fedavg", fedavg(), domains(3), tamper=slow, deadline=60.0)
    assert ask(fed, fedavg()) == (0, 2)
    assert [event.message for event in fed.events] == ["no reply within the deadline of 60 s"]


def test_a_message_that_a_node_cannot_read_is_answered_with_an_error() -> None:
    fed, grid = over_grid("fedavg", fedavg(), domains(3))
    good = grid.push_messages

    def damage(messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        messages[0].content.config_records["header"]["tensors"] = "[["
        return good(messages)

    grid.push_messages = damage  # type: ignore[method-assign]
    assert ask(fed, fedavg()) == (1, 2)
    assert "its node failed: it cannot be read" in fed.events[0].message


def test_a_node_that_does_not_know_the_method_says_so() -> None:
    fed, _ = over_grid("fedunheard", fedavg(), domains(2))
    with pytest.raises(QuorumMissed, match="unknown algorithm 'fedunheard'"):
        ask(fed, fedavg())


@where_state_is
def test_what_clients_keep_of_a_discarded_round_is_forgotten(travelling: bool) -> None:
    """Round 2 misses its quorum; afterwards all is as if it had never begun, as on the local engine."""
    algorithm = build("scaffold", {"lr": 0.1, "batch_size": 8}, 4)
    failing: list[int] = []
    fed, _ = over_grid(
        "scaffold",
        algorithm,
        domains(3),
        quorum=1.0,
        travelling=travelling,
        tamper=lambda r: [rewritten(r, {"problem": "lost"})] if failing and of_client(r, "1") else [r],
    )
    with federation(algorithm, domains(3)) as local:
        expected = through_a_skipped_round(local, algorithm, skip=lambda: None)

    def miss(state: Any) -> None:
        failing.append(1)
        with pytest.raises(QuorumMissed):
            algorithm.round(fed, state)
        fed.discard()
        failing.clear()

    assert through_a_skipped_round(fed, algorithm, skip=miss) == expected


def through_a_skipped_round(fed: Any, algorithm: FedAvg, skip: Callable[..., None]) -> str:
    state = algorithm.start(build_model(SPEC, 0).state())
    for number in range(1, 5):
        fed.begin(number, range(3))
        if number == 2:
            if fed.__class__ is FlowerFederation:
                skip(state)
        else:
            state = algorithm.round(fed, state)
    return hash_states(algorithm.models(state))


def test_a_client_whose_reply_was_refused_goes_on_from_the_state_before_it() -> None:
    """The round counts without it; its own state must not, as on the local engine, where the server keeps it."""
    algorithm = build("scaffold", {"lr": 0.1, "batch_size": 8}, 4)
    hashes = set()

    for travelling in (True, False):
        refusing = to_client(
            "1", lambda r: [rewritten(r, {"seconds": 99.0})] if unpack(r.content)[0]["round"] == 2 else [r]
        )
        fed, _ = over_grid("scaffold", algorithm, domains(3), travelling=travelling, deadline=50.0, tamper=refusing)
        hashes.add(hash_states(algorithm.models(train(fed, algorithm, rounds=4))))
        assert [event.client for event in fed.events] == [1]
    assert len(hashes) == 1
    untouched, _ = over_grid("scaffold", algorithm, domains(3))
    assert hash_states(algorithm.models(train(untouched, algorithm, rounds=4))) not in hashes


@pytest.mark.usefixtures("clock_of_sleeps")
def test_nobody_answering_is_an_error_outside_a_round_too() -> None:
    fed, _ = over_grid("fedavg", fedavg(), domains(2), tamper=lambda reply: [], deadline=60.0)
    fed.begin(1, range(2))
    with pytest.raises(FederationError, match="no client replied in phase 'evaluate'"):
        fed.map_over([0, 1], fedavg().evaluate, build_model(SPEC, 0).state())


def test_looks_for_replies_add_a_tenth_to_the_waiting_and_never_press_or_sleep_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farfield.federation.engines.flower.engine.time", SimpleNamespace(monotonic=lambda: 100.0))
    looks = [until_next_look(100.0 - waited) for waited in (0.0, 0.05, 1.0, 2.0, 600.0)]
    assert looks == pytest.approx([0.01, 0.01, 0.1, 0.2, 0.5])
