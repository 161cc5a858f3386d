"""The local engine's bookkeeping: quorum, cost, randomness, threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, build
from farfield.federation import SCALAR, Client, FederationError, QuorumMissed, Sends, phase
from farfield.federation.phase import Named
from farfield.models import Model
from tests.toy import SPEC, domains, federation, initial

one_and_two_workers = pytest.mark.parametrize("workers", [1, 2])


class Unreliable(FedAvg):
    def __init__(self, failing: set[int]) -> None:
        super().__init__()
        self.failing = failing

    @phase(number=Sends(SCALAR, "a number"))
    def answer(self, client: Client, model: Model, **shared: Any) -> Named:
        if client.id in self.failing:
            raise OSError(f"client {client.id} is out")
        client.state["number"] = torch.tensor(float(client.round))
        return {"number": client.id}


@one_and_two_workers
@pytest.mark.parametrize(
    ("quorum", "failing", "needed"),
    [
        (0.5, 2, None),
        (0.5, 3, 2),
        (0.75, 1, None),
        (0.75, 2, 3),
        (0.6, 1, None),
        (0.6, 2, 3),
        (1.0, 0, None),
        (1.0, 1, 4),
        (0.01, 3, None),
    ],
)
def test_a_round_needs_its_quorum(quorum: float, failing: int, needed: int | None, workers: int) -> None:
    algorithm = Unreliable(set(range(failing)))
    with federation(algorithm, domains(4), quorum=quorum, workers=workers) as fed:
        fed.begin(1, range(4))
        if needed is None:
            assert len(fed.map(algorithm.answer, initial().state())) == 4 - failing
        else:
            message = f"^{4 - failing} of 4 clients replied, and the quorum is {needed} "
            with pytest.raises(QuorumMissed, match=message):
                fed.map(algorithm.answer, initial().state())
        assert [e.client for e in sorted(fed.events, key=lambda e: e.client or 0)] == list(range(failing))


@one_and_two_workers
def test_a_round_without_any_reply_says_why(workers: int) -> None:
    algorithm = Unreliable({0, 1})
    with federation(algorithm, domains(2), workers=workers) as fed:
        fed.begin(1, range(2))
        with pytest.raises(
            QuorumMissed,
            match=r"0 of 2 clients replied.*phase 'answer', first problem: client .*OSError: client . is out",
        ):
            fed.map(algorithm.answer, initial().state())
        assert "client.id" not in fed.events[0].message
        assert "raise OSError" in (fed.events[0].detail or "")
        assert len(fed.events) == 2


def test_the_quorum_is_a_share_of_the_cohort_not_of_all_clients() -> None:
    algorithm = Unreliable({3})
    with federation(algorithm, domains(4), quorum=1.0) as fed:
        fed.begin(1, [0, 2])
        assert [r.client for r in fed.map(algorithm.answer, initial().state())] == [0, 2]
        assert fed.clients == 4


@one_and_two_workers
def test_validation_runs_on_the_clients_named_and_needs_no_quorum(workers: int) -> None:
    algorithm = Unreliable({0, 1})
    with federation(algorithm, domains(4), quorum=1.0, workers=workers) as fed:
        fed.begin(1, [0])
        replies = fed.map_over([3, 0, 1], algorithm.answer, initial().state())
        assert [r.client for r in replies] == [3]
        assert replies.registered == 4
        with pytest.raises(FederationError, match="no client replied in phase 'answer'"):
            fed.map_over([1], algorithm.answer, initial().state())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"workers": 0}, "workers"),
        ({"quorum": 0.0}, "quorum"),
        ({"quorum": 1.5}, "quorum"),
        ({"deadline": 0}, "deadline"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        federation(FedAvg(), domains(2), **options)


@one_and_two_workers
def test_what_a_round_costs_is_counted_by_phase(workers: int) -> None:
    algorithm = build("scaffold", {"batch_size": 8})
    parameters = len(initial().vector)
    with federation(algorithm, domains(2), workers=workers) as fed:
        state = algorithm.start(initial().state())
        for number in (1, 2):
            fed.begin(number, [0, 1])
            state = algorithm.round(fed, state)
        fed.map_over([1], algorithm.evaluate, state.model)
        cost = fed.traffic
    # 32 and 39 training rows in batches of 8, two rounds.
    assert (cost.local_steps, cost.examples) == (2 * (4 + 5), 2 * (32 + 39))
    assert cost.bytes_up == {"train": 2 * 2 * (2 * 4 * parameters + 8), "evaluate": 3 * 8 + 3 * 3 * 4 + 8}
    assert cost.bytes_down == {"train": 2 * 2 * (2 * 4 * parameters), "evaluate": 4 * parameters}
    assert cost.client_seconds > 0
    assert cost.waiting_seconds > 0


def test_the_envelope_says_who_replied_and_how_many_rows_he_has() -> None:
    algorithm = FedAvg()
    with federation(algorithm, domains(3)) as fed:
        fed.begin(1, [0, 1, 2])
        replies = fed.map(algorithm.train, initial().state())
    assert [(r.client, r.domain, r.samples) for r in replies] == [(0, "a", 32), (1, "b", 39), (2, "c", 45)]
    assert replies.samples.tolist() == [32.0, 39.0, 45.0]
    assert replies.weights("samples").tolist() == pytest.approx([32 / 116, 39 / 116, 45 / 116], rel=1e-15)
    assert replies.weights("uniform").tolist() == pytest.approx([1 / 3] * 3, rel=1e-15)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@one_and_two_workers
@pytest.mark.usefixtures("two_threads")
def test_phases_run_on_one_thread_and_the_number_of_threads_comes_back(workers: int) -> None:
    class Threads(FedAvg):
        @phase(number=Sends(SCALAR, "threads in use"))
        def count(self, client: Client, model: Model) -> Named:
            return {"number": torch.get_num_threads()}

    algorithm = Threads()
    with federation(algorithm, domains(2), workers=workers) as fed:
        fed.begin(1, [0, 1])
        assert [r.values["number"] for r in fed.map(algorithm.count, initial().state())] == [1, 1]
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), federation(algorithm, domains(2), workers=workers):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


DROPOUT = SPEC.model_copy(update={"dropout": 0.4})


@one_and_two_workers
def test_a_run_leaves_the_global_random_numbers_as_they_were(workers: int) -> None:
    algorithm = FedAvg()
    torch.manual_seed(7)
    torch.rand(3)
    before = torch.get_rng_state()
    with federation(algorithm, domains(2), DROPOUT, workers=workers) as fed:
        fed.begin(1, [0, 1])
        state = algorithm.round(fed, algorithm.start(initial(DROPOUT).state()))
        fed.map_over([0, 1], algorithm.evaluate, state.model)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_does_not_depend_on_the_global_random_numbers() -> None:
    algorithm = FedAvg()
    hashes = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with federation(algorithm, domains(2), DROPOUT) as fed:
            fed.begin(1, [0, 1])
            hashes.append(algorithm.round(fed, algorithm.start(initial(DROPOUT).state())).model.sha256())
    assert hashes[0] == hashes[1]


def test_random_layers_draw_anew_for_every_client_round_and_phase() -> None:
    class Noise(FedAvg):
        @phase(number=Sends(SCALAR, "a draw of the global generator, as dropout makes it"))
        def draw(self, client: Client, model: Model) -> Named:
            return {"number": float(torch.rand(()))}

        @phase(number=Sends(SCALAR, "the same in another phase"))
        def again(self, client: Client, model: Model) -> Named:
            return {"number": float(torch.rand(()))}

    algorithm = Noise()
    model = initial().state()
    with federation(algorithm, domains(3)) as fed:
        draws = []
        for number in (1, 2):
            fed.begin(number, [0, 1, 2])
            for chosen in (algorithm.draw, algorithm.again):
                draws += [r.values["number"] for r in fed.map(chosen, model)]
        assert len(set(draws)) == 12
        fed.begin(2, [2])
        assert fed.map(algorithm.draw, model)[0].values["number"] == draws[8]
