"""A stack that the memory does not suffice for is made smaller: the same bits, an event, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from farfield.algorithms import build
from farfield.federation.engines.batched import requests, stacked_training
from farfield.federation.engines.batched.engine import BatchedFederation
from farfield.federation.engines.batched.planned_client import RowPool
from farfield.federation.engines.batched.requests import out_of_memory, serve
from farfield.federation.execution import Outcome, fail
from farfield.models import ModelState, Stack, build_model
from tests import toy

CLIENTS, ROUNDS = 5, 3


class Full:
    """Memory for stacks of so many clients; it counts how often it did not suffice."""

    def __init__(self, most: int, error: Callable[[], BaseException]) -> None:
        self.most, self.error, self.times = most, error, 0

    def __call__(self, spec: Any, layout: Any, vector: torch.Tensor, *rest: Any) -> Stack:
        if len(vector) > self.most:
            self.times += 1
            raise self.error()
        return Stack(spec, layout, vector, *rest)


def trained(name: str, pool: RowPool) -> tuple[ModelState, list[Any]]:
    algorithm = build(name, {"lr": 0.1, "batch_size": 8}, ROUNDS)
    model = build_model(algorithm.model_for(toy.SPEC), seed=0)
    population = toy.population(toy.domains(CLIENTS))
    with BatchedFederation(algorithm, model, population, seed=0, serve=lambda r: serve([r], pool)[0]) as fed:
        state = algorithm.start(model.state())
        for number in range(1, ROUNDS + 1):
            fed.begin(round=number, cohort=range(CLIENTS))
            state = algorithm.round(fed, state)
            assert fed.traffic.local_steps
        return state.model, list(fed.events)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fediir"])
@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize(
    "error",
    [
        lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["gpu", "cpu"],
)
def test_the_stack_is_halved_until_it_fits(
    name: str, most: int, error: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, silent = trained(name, RowPool())
    assert silent == []
    full, pool = Full(most, error), RowPool()
    for module in (stacked_training, requests):
        monkeypatch.setattr(module, "Stack", full)
    model, events = trained(name, pool)
    assert torch.equal(model.parameters, enough.parameters)
    assert full.times == {1: 2, 2: 1}[most], "five, then two at a time; a size that did not fit is not tried again"
    assert pool.stack_numbers == most * len(model.parameters)
    assert {event.kind for event in events} == {"note"}
    assert {event.round for event in events} == {1}
    assert "the memory did not suffice for a stack of" in events[0].message


def test_a_client_that_does_not_fit_alone_is_run_without_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    enough, _ = trained("fedavg", RowPool())
    full = Full(0, lambda: torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(stacked_training, "Stack", full)
    model, events = trained("fedavg", RowPool())
    assert torch.equal(model.parameters, enough.parameters)
    assert {event.kind for event in events} == {"note"}


def test_a_client_that_the_memory_does_not_suffice_for_says_what_to_do() -> None:
    outcome = Outcome(0, "a", 3)
    fail(outcome, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 23.69 GiB in all."))
    assert outcome.problem == (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; take a smaller batch_size, "
        "or another --device"
    )
    fail(outcome, torch.OutOfMemoryError("MPS backend out of memory"))
    assert outcome.problem.startswith("OutOfMemoryError: MPS backend out of memory; take a smaller batch_size")


def test_other_errors_are_not_taken_for_full_memory() -> None:
    assert out_of_memory(torch.OutOfMemoryError("x"))
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
