"""Every reply is checked before the algorithm sees it; a bad one costs its client only, and is reported by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from farfield.algorithms import FedAvg
from farfield.federation import SCALAR, Client, Free, Sends, phase
from farfield.federation import reply_checks as checks
from farfield.federation.phase import Named
from farfield.models import Model
from tests.toy import domains, federation, initial

one_and_two_workers = pytest.mark.parametrize("workers", [1, 2])
PARAMETERS = len(initial().vector)


class Answer(FedAvg):
    """Everybody answers as declared but client 1, whose answer is spoiled. It also counts its visits."""

    def __init__(self, spoil: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self.spoil = spoil

    @phase(
        vector=Sends("parameters", "a vector"),
        number=Sends(SCALAR, "a number"),
        maybe=Sends("head", "sometimes", optional=True),
    )
    def answer(self, client: Client, model: Model, **shared: Any) -> Named:
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        good = {"vector": torch.full_like(model.vector, client.id), "number": float(client.round)}
        return self.spoil(good) if client.id == 1 else good  # type: ignore[no-any-return]

    @phase(rows=Sends(Free("rows"), "as many as the client has"))
    def long_answer(self, client: Client, model: Model) -> Named:
        return {"rows": torch.zeros(10 if client.id != 1 else 100)}


def with_vector(change: Callable[[Tensor], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda good: good | {"vector": change(good["vector"])}


def with_number(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda good: good | {"number": value}


def poisoned(vector: Tensor, value: float) -> Tensor:
    vector[-1] = value
    return vector


def fail(good: dict[str, Any]) -> Any:
    raise RuntimeError("the disk is full")


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an undeclared name": (lambda good: good | {"secret": 1.0}, "it sent 'secret', which the phase does not declare"),
    "a missing name": (lambda good: {"vector": good["vector"]}, "'number' is missing"),
    "a vector that is too short": (with_vector(lambda v: v[:-1].clone()), f"'vector' has shape ({PARAMETERS - 1},)"),
    "a vector of the wrong rank": (with_vector(lambda v: v[None]), f"'vector' has shape (1, {PARAMETERS})"),
    "a tensor for a number": (with_number(torch.zeros(2)), "'number' has shape (2,)"),
    "a number for a vector": (with_vector(lambda v: 1.0), "'vector' is a number"),
    "half precision": (with_vector(lambda v: v.half()), "'vector' has dtype torch.float16"),
    "short integers": (with_vector(lambda v: v.int()), "'vector' has dtype torch.int32"),
    "booleans": (with_vector(lambda v: v > 0), "'vector' has dtype torch.bool"),
    "complex numbers": (with_vector(lambda v: v.to(torch.complex64)), "'vector' has dtype torch.complex64"),
    "NaN in a vector": (with_vector(lambda v: poisoned(v, math.nan)), "'vector' is not finite"),
    "infinity in a vector": (with_vector(lambda v: poisoned(v, -math.inf)), "'vector' is not finite"),
    "NaN as a number": (with_number(math.nan), "'number' is not finite"),
    "infinity as a number": (with_number(math.inf), "'number' is not finite"),
    "NaN as a scalar tensor": (with_number(torch.tensor(math.nan)), "'number' is not finite"),
    "a truth value": (with_number(True), "'number' is a bool, not a tensor or a number"),
    "a text": (with_number("1.0"), "'number' is a str, not a tensor or a number"),
    "a list": (with_vector(lambda v: v.tolist()), "'vector' is a list, not a tensor or a number"),
    "an array": (with_vector(lambda v: np.asarray(v)), "'vector' is a ndarray, not a tensor or a number"),
    "None": (with_number(None), "'number' is a NoneType, not a tensor or a number"),
    "an optional value of the wrong size": (lambda good: good | {"maybe": torch.zeros(1)}, "'maybe' has shape (1,)"),
    "nothing at all": (lambda good: None, "TypeError"),
    "an error": (fail, "RuntimeError: the disk is full"),
}


@one_and_two_workers
@pytest.mark.parametrize(("spoil", "phrase"), BAD.values(), ids=BAD.keys())
def test_a_bad_reply_is_dropped_and_named(spoil: Callable[..., Any], phrase: str, workers: int) -> None:
    algorithm = Answer(spoil)
    with federation(algorithm, domains(3), workers=workers) as fed:
        fed.begin(4, [0, 1, 2])
        replies = fed.map(algorithm.answer, initial().state())
        assert [r.client for r in replies] == [0, 2]
        assert [r.domain for r in replies] == ["a", "c"]
        assert [float(r.values["vector"][0]) for r in replies] == [0.0, 2.0]
        (event,) = fed.events
        assert (event.kind, event.round, event.client, event.phase) == ("reply-dropped", 4, 1, "answer")
        assert event.message.startswith(phrase)
        # What a client keeps is kept only if its reply is: no half-made round stays behind.
        assert set(fed.states) == {0, 2}
        assert fed.traffic.bytes_up == {"answer": 2 * (4 * PARAMETERS + 8)}


def test_a_good_reply_passes_with_every_kind_of_value_that_is_allowed() -> None:
    for value in (1, 0.5, torch.tensor(3.0)):
        algorithm = Answer(lambda good, value=value: good | {"number": value, "maybe": torch.zeros(21)})
        with federation(algorithm, domains(3)) as fed:
            fed.begin(1, [0, 1, 2])
            replies = fed.map(algorithm.answer, initial().state())
            assert [r.client for r in replies] == [0, 1, 2]
            assert float(replies[1].values["number"]) == float(value)
            assert fed.events == []
            assert not replies.has("maybe")  # one client's is not everybody's
            assert replies.has("number")


@one_and_two_workers
def test_a_reply_over_the_limit_is_dropped_where_only_the_client_knows_the_size(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_BYTES", 200)
    algorithm = Answer(fail)
    with federation(algorithm, domains(3), workers=workers) as fed:
        fed.begin(1, [0, 1, 2])
        replies = fed.map(algorithm.long_answer, initial().state())
        assert [r.client for r in replies] == [0, 2]
        assert fed.events[0].message == "it is 400 bytes, over the limit of 200"


class Meddler(FedAvg):
    @phase(number=Sends(SCALAR, "what was shared"))
    def meddle(self, client: Client, model: Model, target: Tensor, scale: float) -> Named:
        if client.id == 1:
            target.mul_(2.0)
        return {"number": scale * float(target.sum())}


@one_and_two_workers
def test_a_phase_that_changes_a_shared_tensor_in_place_changes_its_own_copy(workers: int) -> None:
    algorithm = Meddler()
    target = torch.ones(3)
    with federation(algorithm, domains(3), workers=workers) as fed:
        fed.begin(1, [0, 1, 2])
        replies = fed.map(algorithm.meddle, initial().state(), target=target, scale=0.5)
        assert [(r.client, r.values["number"]) for r in replies] == [(0, 1.5), (1, 3.0), (2, 1.5)]
        assert fed.events == []
    assert target.tolist() == [1.0, 1.0, 1.0]


class Diary(FedAvg):
    """Writes its state before it knows how the phase ends."""

    @phase(number=Sends(SCALAR, "a number"))
    def write(self, client: Client, model: Model, mood: int) -> Named:
        visits = client.state.setdefault("visits", torch.zeros(2))
        visits.add_(1)
        if client.id == 1 and mood == 1:
            raise RuntimeError("no more ink")
        return {"number": math.nan if client.id == 1 and mood == 2 else float(visits[0])}


@one_and_two_workers
def test_a_clients_state_stays_as_it_was_when_its_reply_is_not_taken(workers: int) -> None:
    algorithm = Diary()
    model = initial().state()
    with federation(algorithm, domains(2), workers=workers) as fed:
        visits = []
        for number, mood in enumerate([0, 0, 1, 2, 0], start=1):
            fed.begin(number, [0, 1])
            fed.map(algorithm.write, model, mood=mood)
            visits.append([int(fed.states[c]["visits"][0]) for c in (0, 1)])
        assert visits == [[1, 1], [2, 2], [3, 2], [4, 2], [5, 3]]
        assert [(e.round, e.client) for e in fed.events] == [(3, 1), (4, 1)]


@one_and_two_workers
def test_only_clients_that_took_part_have_a_state(workers: int) -> None:
    algorithm = Diary()
    with federation(algorithm, domains(4), workers=workers) as fed:
        fed.begin(1, [2])
        fed.map(algorithm.write, initial().state(), mood=0)
        assert set(fed.states) == {2}
