"""The batched engine has the bits of the local one, for every method, and whatever else it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, build, names
from farfield.federation.client import Client
from farfield.federation.engine import Engine
from farfield.federation.engines.batched import requests
from farfield.federation.engines.batched.engine import BatchedFederation
from farfield.federation.engines.batched.planned_client import RowPool
from farfield.federation.engines.batched.requests import Request, serve, why_alone
from farfield.federation.engines.local import LocalFederation
from farfield.federation.execution import Outcome
from farfield.federation.phase import form_of
from farfield.models import ModelSpec, build_model
from farfield.tasks.task import Domain
from tests.toy import SPEC, domain, population

#: Sites with different numbers of rows, some of them equal: last batches are long, short and single rows.
SIZES = (40, 57, 40, 65, 33)
BINARY = SPEC.model_copy(update={"outputs": 1})


def sites(outputs: int = 3, real: bool = False) -> list[Domain]:
    made = [domain(name, 0.5 * i, rows) for i, (name, rows) in enumerate(zip("abcde", SIZES, strict=True))]
    if real:
        return [Domain(d.name, d.x, d.x[:, 0] * 0.5 + d.y.float()) for d in made]
    return made if outputs > 1 else [Domain(d.name, d.x, d.y % 2) for d in made]


def run(engine: type[Engine], algorithm: FedAvg, spec: ModelSpec, chosen: Sequence[Domain], rounds: int) -> list[Any]:
    """The states, losses and validation figures of every round."""
    spec = algorithm.model_for(spec)
    model, seen = build_model(spec, seed=0), []
    people = population(chosen, algorithm.pooled)
    with engine(algorithm, model, people, seed=0) as fed:  # type: ignore[call-arg]
        state = algorithm.start(model.state())
        for number in range(1, rounds + 1):
            fed.begin(number, range(len(people)))
            state = replace(algorithm.round(fed, state), round=number)
            validation = fed.map_over(range(len(people)), algorithm.evaluate, state.model)
            figures = [{k: v.tolist() if hasattr(v, "tolist") else v for k, v in r.values.items()} for r in validation]
            seen.append(([m.sha256() for m in algorithm.models(state)], state.diagnostics, figures))
        assert not [event for event in fed.events if event.kind == "reply-dropped"]
        seen.append((fed.traffic.local_steps, fed.traffic.examples, fed.traffic.bytes_up, fed.traffic.bytes_down))
    return seen


def same(algorithm: FedAvg, spec: ModelSpec, chosen: Sequence[Domain], rounds: int = 6) -> None:
    stacked, alone = (run(kind, algorithm, spec, chosen, rounds) for kind in (BatchedFederation, LocalFederation))
    assert stacked == alone


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_method(name: str) -> None:
    same(build(name, {"batch_size": 8}, rounds=6), SPEC, sites())


@pytest.mark.parametrize(
    "name", ["fedavg", "fedprox", "scaffold", "fediir", "fedsgd", "local-only", "erm", "fedilc-inter-geo"]
)
@pytest.mark.parametrize(
    "spec",
    [
        BINARY,
        SPEC.model_copy(update={"featurizer": "identity"}),
        BINARY.model_copy(update={"featurizer": "identity"}),
        SPEC.model_copy(update={"hidden": (16, 8), "head": "mlp", "head_hidden": 8}),
        SPEC.model_copy(update={"head_bias": False}),
    ],
    ids=["binary", "linear", "logistic", "deep", "no bias"],
)
def test_models(name: str, spec: ModelSpec) -> None:
    same(build(name, {"batch_size": 8}), spec, sites(spec.outputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9},
        {"optimizer": "adam", "lr": 0.01},
        {"weight_decay": 0.01, "local_epochs": 3},
        {"local_steps": 4},
        {"batch_size": 0},
        {"class_weights": "balanced"},
        {"clip": 0.1},
        {"schedule": [1, 2, 3]},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fediir", "fedilc-inter-geo"])
def test_settings(name: str, settings: dict[str, Any]) -> None:
    same(build(name, {"batch_size": 8, **settings}), SPEC, sites())


@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.parametrize(
    "name",
    [
        "fedavg",
        "fedprox",
        "scaffold",
        "fediir",
        "local-only",
        "erm",
        "fedsgd",
        "fedilc-geometric",
        "fedcir",
        "fedloe-irm",
        "fedilc-inter-geo",
    ],
)
def test_the_stack_itself_is_what_answers(name: str, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that fails is run client by client, with the same bits: nothing else would show it."""

    def alone(*_: Any) -> Outcome:
        raise AssertionError("a client was run alone")

    monkeypatch.setattr(requests, "run_phase", alone)
    spec = SPEC if outputs == 3 else BINARY
    assert run(BatchedFederation, build(name, {"batch_size": 8}, rounds=2), spec, sites(outputs), 2)


@pytest.mark.parametrize("name", ["fedcir", "fedcir-reg", "fedcir-align"])
@pytest.mark.parametrize(
    "spec",
    [BINARY, SPEC.model_copy(update={"hidden": (13,)}), SPEC.model_copy(update={"hidden": (16,), "head": "mlp"})],
    ids=["binary", "odd", "deep"],
)
def test_methods_that_draw_in_their_loss(name: str, spec: ModelSpec) -> None:
    same(build(name, {"batch_size": 8, "warmup": 0}), spec, sites(spec.outputs), rounds=3)


def test_predictions_that_are_means_over_samples() -> None:
    same(build("fedcir", {"batch_size": 8}), SPEC.model_copy(update={"test_samples": 3}), sites(), rounds=2)


@pytest.mark.parametrize("spec", [SPEC, BINARY], ids=["classes", "binary"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9, "head_epochs": 2}, {"head_optimizer": "adam", "head_weight_decay": 0.01}],
    ids=str,
)
def test_heads_that_are_trained_by_themselves(spec: ModelSpec, settings: dict[str, Any]) -> None:
    same(build("fedloe-irm", {"batch_size": 8, "stage2": 0.5, **settings}, rounds=4), spec, sites(spec.outputs), 4)


def test_a_regression() -> None:
    same(build("fedavg", {"batch_size": 8}), BINARY, sites(real=True))


@pytest.mark.slow
def test_thirty_rounds_of_many_small_steps() -> None:
    same(build("scaffold", {"batch_size": 4, "local_epochs": 2}), SPEC, sites(), rounds=30)


def requests_of(names: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[Request]:
    """First requests of runs with these methods, seeds and settings."""
    made = []
    for seed, (name, of) in enumerate(zip(names, settings, strict=True)):
        algorithm = build(name, of)
        chosen = sites()[seed % 2 :]
        model, people = build_model(SPEC, seed), population(chosen, algorithm.pooled, seed=seed)
        shared: dict[str, Any] = {}
        if name == "scaffold":
            shared = {"control": 0.01 * torch.ones(len(model.vector))}

        def client(number: int, people: Any = people, seed: int = seed) -> Client:
            found: Client = people.client(number, seed=seed, round=2, phase="train", state={})
            return found

        made.append(Request(algorithm, "train", model, model.state(), shared, range(len(people)), client))
    return made


def told(outcomes: Sequence[Outcome]) -> list[Any]:
    by_client = sorted(outcomes, key=lambda outcome: outcome.client)
    assert [o.problem for o in by_client] == [None] * len(by_client)
    return [
        (o.client, o.steps, {k: v.tolist() if hasattr(v, "tolist") else v for k, v in o.values.items()})
        for o in by_client
    ]


def test_a_run_does_not_depend_on_what_is_served_with_it() -> None:
    methods = ["fedavg", "fedprox", "scaffold", "fedavg", "fedprox", "erm", "fedavg"]
    settings: list[dict[str, Any]] = [{"batch_size": 8, "lr": 0.05 * (1 + i)} for i in range(len(methods))]
    settings[1] |= {"mu": 0.3}
    settings[3] |= {"momentum": 0.9}
    settings[6] |= {"optimizer": "adam", "lr": 0.01, "local_epochs": 2}
    asked = requests_of(methods, settings)
    together = [told(outcomes) for outcomes in serve(asked, RowPool())]
    for number, request in enumerate(asked):
        assert told(serve([request], RowPool())[0]) == together[number]
    backwards = serve(asked[::-1], RowPool())[::-1]
    assert [told(outcomes) for outcomes in backwards] == together


def test_a_client_that_fails_costs_nobody_else_anything() -> None:
    asked = requests_of(["fedavg", "fedavg"], [{"batch_size": 8}, {"batch_size": 8, "lr": 0.2}])
    alone = told(serve([asked[1]], RowPool())[0])
    make = asked[0].client

    def failing(number: int) -> Client:
        client = make(number)
        if number == 1:
            client.training.parts()[0][0].x[:] = float("nan")
        return client

    broken = replace(asked[0], client=failing)
    first, second = serve([broken, asked[1]], RowPool())
    assert {o.client: o.problem for o in first}[1] == "'update' is not finite"
    assert [o.problem for o in first if o.client != 1] == [None] * 4
    assert told(second) == alone


def test_what_cannot_be_a_stack_is_said() -> None:
    convolutions = ModelSpec(featurizer="convnet", input_shape=(1, 8, 8), outputs=3, hidden=(4,))
    model = build_model(SPEC, 0)
    assert why_alone(build("fedavg"), "train", model) is None
    assert why_alone(build("fedavg"), "train", build_model(convolutions, 0)) == (
        "the featurizer 'convnet' has other layers than linear ones"
    )
    grouped = build_model(SPEC.model_copy(update={"norm": "group"}), 0)
    assert why_alone(build("fedavg"), "train", grouped) == "the norm policy 'group' has normalisation layers"
    private = build("fedavg", {"privacy": "record", "clip": 1.0, "noise": 1.0})
    assert why_alone(private, "train", model) == "privacy=record clips the gradient of each row"


def test_an_overridden_phase_without_a_form_of_its_own_is_run_client_by_client() -> None:
    class Doubled(FedAvg):
        name = "doubled"

        def evaluate(self, client: Any, model: Any) -> Any:
            return {**super().evaluate(client, model), "auroc": 0.25}

    assert form_of(FedAvg(), "evaluate") is not None
    assert form_of(Doubled(), "evaluate") is None
    same(Doubled(Doubled.Params(batch_size=8)), SPEC, sites(), rounds=2)


def test_a_stack_that_fails_is_told_once_per_phase_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(requests, "train_together", broken)
    algorithm, model, people = build("fedavg", {"batch_size": 8}), build_model(SPEC, 0), population(sites())
    with BatchedFederation(algorithm, model, people, seed=0) as fed:
        state = algorithm.start(model.state())
        for number in (1, 2):
            fed.begin(number, range(5))
            state = replace(algorithm.round(fed, state), round=number)
        (note,) = [event.message for event in fed.events if event.kind == "note"]
    assert note == (
        "the clients of this phase are run one by one, with the same result: their stack failed (RuntimeError: no such "
        "kernel)"
    )


def test_settings_that_need_second_derivatives_say_so() -> None:
    weighted = build("fediir", {"class_weights": "balanced"})
    assert why_alone(weighted, "train", build_model(SPEC, 0)) == (
        "fediir takes second derivatives where its head is not linear or classes have weights"
    )
    assert (
        why_alone(build("fediir", {"class_weights": "balanced", "gamma": 0.0}), "train", build_model(SPEC, 0)) is None
    )
