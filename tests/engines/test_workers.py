"""Worker processes: the same bits whatever their number, and when one is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, State, build
from farfield.federation import SCALAR, Client, Free, Sends, phase
from farfield.federation.phase import Named
from farfield.models import Model, ModelSpec
from farfield.tasks.task import Domain
from tests.toy import SPEC, domains, federation, initial

PATIENCE = 30.0
ROOT = Path(__file__).parents[2]
IMAGES = ModelSpec(featurizer="convnet", input_shape=(1, 5, 4), outputs=3, hidden=(4, 6), norm="average")


def image_domains(count: int) -> list[Domain]:
    """The toy rows as images of bytes, five times their four numbers."""
    return [
        Domain(d.name, (d.x.clamp(-4, 4) * 30 + 125).to(torch.uint8).repeat(1, 5).view(-1, 1, 5, 4), d.y)
        for d in domains(count)
    ]


def trained(name: str, spec: ModelSpec, chosen: list[Domain], workers: int) -> tuple[State, dict[int, Any], int]:
    algorithm = build(name, {"batch_size": 8})
    with federation(algorithm, chosen, spec, workers=workers) as fed:
        state = algorithm.start(initial(spec).state())
        for number, cohort in enumerate(([0, 1, 2, 3, 4], [0, 2, 4], [1, 2, 3]), start=1):
            fed.begin(number, cohort)
            state = algorithm.round(fed, state)
        assert fed.events == []
        return state, fed.states, fed.traffic.local_steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spec", "chosen"),
    [
        ("fedavg", SPEC.model_copy(update={"dropout": 0.4}), domains(5)),
        ("fedavg", IMAGES, image_domains(5)),
        ("scaffold", SPEC, domains(5)),
        ("scaffold", SPEC.model_copy(update={"norm": "local"}), domains(5)),
        ("fedavg", SPEC.model_copy(update={"representation": "gaussian"}), domains(5)),
    ],
    ids=["dropout", "convnet with batch norm", "scaffold", "scaffold with local norm", "gaussian"],
)
def test_one_two_and_four_workers_give_the_same_bits(name: str, spec: ModelSpec, chosen: list[Domain]) -> None:
    (one, states, steps), *others = (trained(name, spec, chosen, workers) for workers in (1, 2, 4))
    assert not torch.equal(one.model.parameters, initial(spec).vector)
    assert torch.equal(one.model.buffers, initial(spec).buffer_vector) == (spec.norm != "average")
    for other, other_states, other_steps in others:
        assert other.model.sha256() == one.model.sha256()
        assert dict(other.diagnostics) == dict(one.diagnostics)
        assert other_steps == steps
        assert set(other.extras) == set(one.extras)
        assert all(torch.equal(other.extras[n], one.extras[n]) for n in one.extras)
        assert set(other_states) == set(states)
        for client, kept in states.items():
            assert set(other_states[client]) == set(kept)
            assert all(torch.equal(other_states[client][n], kept[n]) for n in kept)


class LastFirst(FedAvg):
    """Client 0 waits until the others have been at work, so its reply comes in after theirs."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @phase(number=Sends(SCALAR, "the client's own number"))
    def answer(self, client: Client, model: Model) -> Named:
        (self.folder / str(client.id)).touch()
        limit = time.monotonic() + PATIENCE
        while client.id == 0 and not (self.folder / "3").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        return {"number": 10 * client.id}


def test_replies_are_in_client_order_whatever_order_they_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = LastFirst(tmp_path)
    with federation(algorithm, domains(4), workers=2) as fed:
        arrived: list[int] = []
        outcomes = fed._outcomes

        def watched(*args: Any) -> Iterator[Any]:
            for outcome in outcomes(*args):
                arrived.append(outcome.client)
                yield outcome

        monkeypatch.setattr(fed, "_outcomes", watched)
        fed.begin(1, [3, 1, 0, 2])
        replies = fed.map(algorithm.answer, initial().state())
    # The other worker has to hand in 1 and 2 before it is given 3.
    assert arrived[:2] == [1, 2]
    assert [(r.client, r.domain, r.values["number"]) for r in replies] == [
        (0, "a", 0),
        (1, "b", 10),
        (2, "c", 20),
        (3, "d", 30),
    ]
    assert replies.stack("number").tolist() == [0, 10, 20, 30]


class Mortal(FedAvg):
    """Client 1's process is killed in round 2, in the middle of training."""

    def __init__(self) -> None:
        super().__init__(self.Params(batch_size=8))
        self.parent = os.getpid()

    def train(self, client: Client, model: Model, **shared: Any) -> Named:
        client.state["rounds"] = client.state.get("rounds", torch.zeros(())) + 1
        reply = super().train(client, model, **shared)
        if client.id == 1 and client.round == 2 and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply


def test_a_client_that_kills_every_worker_is_lost_alone_and_the_next_round_works() -> None:
    algorithm = Mortal()
    model = initial().state()
    with federation(algorithm, domains(3)) as fed:
        expected = []
        for number in (1, 2, 3):
            fed.begin(number, [0, 1, 2])
            expected.append(fed.map(algorithm.train, model).stack("update"))
    with federation(algorithm, domains(3), workers=2) as fed:
        for number, rows in enumerate(expected, start=1):
            fed.begin(number, [0, 1, 2])
            replies = fed.map(algorithm.train, model)
            survivors = [0, 2] if number == 2 else [0, 1, 2]
            assert [r.client for r in replies] == survivors
            assert torch.equal(replies.stack("update"), rows[survivors])
            assert len(multiprocessing.active_children()) == 2
        assert {(event.round, event.client, event.phase) for event in fed.events} == {(2, 1, "train")}
        again = "its worker process ended (exit code -9) and was replaced; it is run again"
        lost = "its worker process ended 3 times in a row (exit code -9)"
        assert [(event.kind, event.message) for event in fed.events] == [
            ("run-again", again),
            ("run-again", again),
            ("reply-dropped", lost),
        ]
        assert [int(fed.states[c]["rounds"]) for c in (0, 1, 2)] == [3, 2, 3]
    assert multiprocessing.active_children() == []


class KilledOnce(FedAvg):
    """The process of client 1 is killed the first time that it trains it, after it has changed its state."""

    def __init__(self, mark: Path) -> None:
        super().__init__(self.Params(batch_size=8))
        self.mark, self.parent = mark, os.getpid()

    def train(self, client: Client, model: Model, **shared: Any) -> Named:
        client.state["rounds"] = client.state.get("rounds", torch.zeros(())) + 1
        reply = super().train(client, model, **shared)
        if client.id == 1 and os.getpid() != self.parent and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return reply


def test_work_that_is_lost_with_a_killed_worker_is_done_again_to_the_same_bits(tmp_path: Path) -> None:
    algorithm = KilledOnce(tmp_path / "killed")
    found = {}
    for workers in (1, 2):
        with federation(algorithm, domains(3), workers=workers) as fed:
            state = algorithm.start(initial().state())
            for number in (1, 2, 3):
                fed.begin(number, [0, 1, 2])
                state = algorithm.round(fed, state)
            kept = {client: int(of["rounds"]) for client, of in fed.states.items()}
            found[workers] = (state.model.sha256(), kept, fed.traffic.local_steps)
            assert [(e.kind, e.round, e.client) for e in fed.events] == [("run-again", 1, 1)] * (workers - 1)
    assert (tmp_path / "killed").exists()
    assert found[1] == found[2]


def test_a_worker_that_is_killed_while_it_waits_costs_nothing() -> None:
    algorithm = Sleeper(0.0)
    with federation(algorithm, domains(3), workers=2) as fed:
        for process in multiprocessing.active_children():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        fed.begin(2, [0, 1, 2])
        assert [r.client for r in fed.map(algorithm.answer, initial().state())] == [0, 1, 2]
        assert {event.kind for event in fed.events} <= {"run-again"}


class Sleeper(FedAvg):
    """Client 1 oversleeps in round 1."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    @phase(number=Sends(SCALAR, "the round"))
    def answer(self, client: Client, model: Model) -> Named:
        client.state["seen"] = torch.tensor(client.round)
        if client.id == 1 and client.round == 1:
            time.sleep(self.seconds)
        return {"number": client.round}


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "seconds"), [(1, 1.8), (2, 600.0)])
def test_a_client_that_misses_the_deadline_is_dropped_for_that_round(workers: int, seconds: float) -> None:
    algorithm = Sleeper(seconds)
    model = initial().state()
    with federation(algorithm, domains(3), workers=workers, deadline=1.5) as fed:
        fed.begin(1, [0, 1, 2])
        assert [r.client for r in fed.map(algorithm.answer, model)] == [0, 2]
        assert [(e.client, e.phase, e.message) for e in fed.events] == [
            (1, "answer", "no reply within the deadline of 1.5 s")
        ]
        assert set(fed.states) == {0, 2}
        fed.begin(2, [0, 1, 2])
        assert [r.values["number"] for r in fed.map(algorithm.answer, model)] == [2, 2, 2]
        assert len(fed.events) == 1
        assert set(fed.states) == {0, 1, 2}


def alive(pid: int) -> bool:
    """Whether a process is there and not only waiting to be reaped."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1] not in ("", "Z")


def test_workers_end_when_the_federation_closes() -> None:
    algorithm = Sleeper(0.0)
    with federation(algorithm, domains(3), workers=3) as fed:
        pids = [p.pid for p in multiprocessing.active_children()]
        assert len(pids) == 3
        fed.begin(1, [0, 1, 2])
        fed.map(algorithm.answer, initial().state())
    assert multiprocessing.active_children() == []
    assert [alive(pid) for pid in pids if pid is not None] == [False, False, False]


def test_workers_end_when_the_program_fails_in_the_middle() -> None:
    algorithm = Sleeper(0.0)
    with pytest.raises(TypeError, match="not a phase"), federation(algorithm, domains(2), workers=2) as fed:
        fed.map(algorithm.round, initial().state())
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_workers_end_by_themselves_when_their_parent_is_killed() -> None:
    script = (
        "import multiprocessing, time\n"
        "from farfield.algorithms import FedAvg\n"
        "from tests.toy import domains, federation\n"
        "with federation(FedAvg(), domains(2), workers=2):\n"
        "    print(*[p.pid for p in multiprocessing.active_children()], flush=True)\n"
        "    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert [alive(pid) for pid in pids] == [True, True]
        parent.kill()
        parent.wait()
        limit = time.monotonic() + PATIENCE
        while any(alive(pid) for pid in pids) and time.monotonic() < limit:
            time.sleep(0.1)
    assert [alive(pid) for pid in pids] == [False, False]


def test_more_workers_than_clients_do_no_harm() -> None:
    algorithm = Sleeper(0.0)
    with federation(algorithm, domains(1), workers=3) as fed:
        fed.begin(2, [0])
        assert [r.values["number"] for r in fed.map(algorithm.answer, initial().state())] == [2]


class Echo(FedAvg):
    """Sends back what was shared, and keeps it."""

    @phase(rows=Sends(Free("rows"), "what was shared"), number=Sends(SCALAR, "a shared number"))
    def echo(self, client: Client, model: Model, rows: torch.Tensor, number: float) -> Named:
        earlier = client.state.get("rows", torch.zeros(0))
        client.state["rows"] = torch.cat([earlier, rows])
        return {"rows": rows + client.id, "number": number}


@pytest.mark.parametrize("size", [0, 1, 6_000_000], ids=["nothing", "one number", "more than an arena"])
def test_shared_values_states_and_replies_of_any_size_get_through(size: int) -> None:
    algorithm = Echo()
    with federation(algorithm, domains(2), workers=2) as fed:
        for number in (1, 2):
            rows = torch.full((size,), float(number))
            fed.begin(number, [0, 1])
            replies = fed.map(algorithm.echo, initial().state(), rows=rows, number=0.1 + 0.2)
            for reply in replies:
                assert torch.equal(reply.values["rows"], rows + reply.client)
                assert reply.values["number"] == 0.1 + 0.2
        assert fed.events == []
        assert [len(fed.states[c]["rows"]) for c in (0, 1)] == [2 * size, 2 * size]


def test_each_exchange_of_a_round_gets_its_own_model_and_shared_values() -> None:
    class Sum(FedAvg):
        @phase(number=Sends(SCALAR, "the sum of the parameters and of what was shared"))
        def total(self, client: Client, model: Model, **shared: Any) -> Named:
            return {"number": float(model.vector.sum()) + sum(float(v) for v in shared.values())}

    algorithm = Sum()
    parameters = len(initial().vector)
    with federation(algorithm, domains(3), workers=2) as fed:
        fed.begin(1, [0, 1, 2])
        state = initial().state()
        for level, shared in enumerate([{"a": 1.0}, {}, {"a": torch.tensor(2.0), "b": 3}, {"b": 4}]):
            state.parameters.fill_(level)
            replies = fed.map(algorithm.total, state, **shared)
            expected = level * parameters + sum(float(v) for v in shared.values())
            assert [r.values["number"] for r in replies] == [expected] * 3
