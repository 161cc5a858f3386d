"""Stacks by `torch.func`: the steps of the local engine to rounding, and bits that no other run changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farfield.algorithms import FedAvg, build
from farfield.federation.client import Client
from farfield.federation.engine import Engine
from farfield.federation.engines.batched import requests
from farfield.federation.engines.batched.engine import BatchedFederation
from farfield.federation.engines.batched.own_stacks import most_together, own_parts
from farfield.federation.engines.batched.planned_client import RowPool
from farfield.federation.engines.batched.requests import Request, serve, why_alone
from farfield.federation.engines.local import LocalFederation
from farfield.federation.execution import Outcome
from farfield.models import FunctionalStack, ModelSpec, build_model, why_not_functional
from farfield.models.featurizers import FEATURIZERS, featurizer
from farfield.tasks.task import Domain
from tests import toy

SHAPE = (1, 16, 16)
#: Two convolutions and a linear layer, and convolutions with GroupNorm.
PLAIN = ModelSpec(featurizer="fedavg-cnn", input_shape=SHAPE, outputs=3, hidden=(4, 6, 8))
GROUPS = ModelSpec(featurizer="convnet", input_shape=SHAPE, outputs=3, hidden=(4, 16), norm="group")


def sites() -> list[Domain]:
    """Images of different mean by class, in different numbers."""
    made = []
    for number, rows in enumerate((20, 27, 20, 33)):
        random = torch.Generator().manual_seed(number)
        y = torch.arange(rows) % 3
        x = torch.rand((rows, *SHAPE), generator=random) + 0.5 * y.view(-1, 1, 1, 1) + 0.1 * number
        made.append(Domain("abcd"[number], x, y))
    return made


def engines(algorithm: FedAvg, spec: ModelSpec, chosen: Sequence[Domain]) -> tuple[Engine, Engine]:
    """The local engine and one that stacks by `torch.func`."""
    people = toy.population(chosen, algorithm.pooled)
    models = [build_model(algorithm.model_for(spec), seed=0) for _ in range(2)]
    return (
        LocalFederation(algorithm, models[0], people, seed=0),
        BatchedFederation(algorithm, models[1], people, seed=0, functional=True),
    )


def heard(fed: Engine) -> dict[tuple[str, int, str], Tensor]:
    """Collect what clients reply from now on, by phase, client and name."""
    seen: dict[tuple[str, int, str], Tensor] = {}
    reach = fed._outcomes

    def outcomes(phase: str, *rest: Any) -> Iterator[Outcome]:
        for outcome in reach(phase, *rest):
            assert outcome.problem is None
            values = outcome.values.items()
            seen.update({(phase, outcome.client, name): torch.as_tensor(value).clone() for name, value in values})
            yield outcome

    fed._outcomes = outcomes  # type: ignore[method-assign]
    return seen


def one_round_on_both(algorithm: FedAvg, spec: ModelSpec) -> list[tuple[dict[Any, Tensor], list[Tensor]]]:
    """The second round after the same first one, on the local engine and in a stack: all replies, and the models."""
    alone, stacked = engines(algorithm, spec, sites())
    with alone, stacked:
        alone.begin(1, range(alone.clients))
        state = algorithm.start(alone._model.state())  # type: ignore[attr-defined]
        state = replace(algorithm.round(alone, state), round=1)
        stacked.states = copy.deepcopy(alone.states)
        seen = []
        for fed in (alone, stacked):
            fed.begin(2, range(fed.clients))
            replies = heard(fed)
            after = replace(algorithm.round(fed, copy.deepcopy(state)), round=2)
            fed.map_over(range(fed.clients), algorithm.evaluate, after.model)
            seen.append((replies, [model.parameters for model in algorithm.models(after)]))
        assert [event for event in stacked.events if event.kind == "note"] == []
    return seen


def far(given: Tensor, truth: Tensor) -> float:
    """The distance relative to the length of the truth."""
    return float((given.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-12))


STEPS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.5},
    "scaffold": {},
    "fediir": {"gamma": 0.5},
    "fedcir": {"warmup": 0, "lambda_align": 0.01},
    "fedsgd": {},
    "fedilc-geometric": {},
    "fedloe-irm": {"stage2": 0.5},
    "local-only": {},
}


@pytest.fixture
def only_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is run alone on the engine with stacks: that would be the local engine against itself."""

    def alone(*_: Any) -> Outcome:
        raise AssertionError("a client was run alone")

    monkeypatch.setattr(requests, "run_phase", alone)


def one_step(name: str) -> FedAvg:
    """A method that makes one local step in a round, from at most 26 training rows."""
    settings: dict[str, Any] = {"batch_size": 32, **STEPS[name]}
    if name in ("fedsgd", "fedilc-geometric"):
        del settings["batch_size"]
    return build(name, settings, rounds=2)


#: FedILC's geometric mean amplifies the rounding of gradients that are zero: those of biases before a GroupNorm.
CASES = [
    pytest.param(name, spec, id=f"{name} {norm}")
    for name in STEPS
    for norm, spec in (("plain", PLAIN), ("groups", GROUPS))
    if (name, norm) != ("fedilc-geometric", "groups")
]


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_a_step_is_that_of_the_local_engine_to_rounding(name: str, spec: ModelSpec, only_stacks: None) -> None:
    (_, truth), (_, given) = one_round_on_both(one_step(name), spec)
    apart = [far(*pair) for pair in zip(given, truth, strict=True)]
    assert max(apart) < 1e-6


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_in_double_precision_every_reply_is_that_of_the_local_engine(
    name: str, spec: ModelSpec, double: None, only_stacks: None
) -> None:
    (truth, _), (given, _) = one_round_on_both(one_step(name), spec)
    assert given.keys() == truth.keys()
    apart = {key: far(given[key], truth[key]) for key in truth}
    assert max(apart.values()) < 1e-10, apart


def asked_of(methods: Sequence[tuple[str, dict[str, Any]]], specs: Sequence[ModelSpec]) -> list[Request]:
    """First requests of runs with these methods, settings and models."""
    made = []
    for seed, ((name, settings), spec) in enumerate(zip(methods, specs, strict=True)):
        algorithm = build(name, settings)
        chosen = sites()[seed % 2 :]
        if spec is toy.SPEC:
            chosen = toy.domains(4)
        model, people = build_model(spec, seed), toy.population(chosen, algorithm.pooled, seed=seed)
        head = model.layout.head
        shared = {"target": 0.01 * torch.ones(head.stop - head.start)} if name == "fediir" else {}

        def client(number: int, people: Any = people, seed: int = seed) -> Client:
            found: Client = people.client(number, seed=seed, round=2, phase="train", state={})
            return found

        made.append(
            Request(algorithm, "train", model, model.state(), shared, range(len(people)), client, functional=True)
        )
    return made


def updates(outcomes: Sequence[Outcome]) -> Tensor:
    assert [outcome.problem for outcome in outcomes] == [None] * len(outcomes)
    ordered = sorted(outcomes, key=lambda outcome: outcome.client)
    return torch.stack([torch.as_tensor(outcome.values["update"]) for outcome in ordered])


def test_a_run_does_not_depend_on_what_is_served_with_it(
    own_featurizers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gelu = PLAIN.model_copy(update={"featurizer": "test-gelu"})  # its rounding changes with every number of clients
    methods: list[tuple[str, dict[str, Any]]] = [
        ("fedavg", {"batch_size": 8, "lr": 0.1}),
        ("fedprox", {"batch_size": 8, "lr": 0.1, "mu": 0.3}),
        ("fedavg", {"batch_size": 7}),
        ("fedavg", {"batch_size": 7, "lr": 0.2}),
        ("fediir", {"batch_size": 8, "gamma": 0.1}),
        ("fedavg", {"batch_size": 8}),
        ("erm", {"batch_size": 8}),
    ]
    asked = asked_of(methods, [PLAIN, PLAIN, gelu, gelu, GROUPS, toy.SPEC, GROUPS])
    train, runs = requests.train_together, []

    def together_with(members: Any, *rest: Any) -> None:
        runs.append(len({id(member.method) for member in members}))
        train(members, *rest)

    monkeypatch.setattr(requests, "train_together", together_with)
    together = [updates(outcomes) for outcomes in serve(asked, RowPool())]
    assert runs == [1] * 6, "a stack for each run; that of one client needs none"
    backwards = [updates(outcomes) for outcomes in serve(asked[::-1], RowPool())[::-1]]
    assert all(torch.equal(*pair) for pair in zip(together, backwards, strict=True))
    full = RowPool()
    full.stack_numbers = 1  # as after a stack of another run for which the memory did not suffice
    for number, request in enumerate(asked):
        shuffled = replace(request, clients=list(request.clients)[::-1])
        for one, pool in ((request, RowPool()), (request, full), (shuffled, RowPool())):
            assert torch.equal(updates(serve([one], pool)[0]), together[number])


def test_stacks_are_split_by_what_is_asked_alone() -> None:
    assert own_parts([4, 1, 3], 32) == [[1, 3, 4]]
    assert [len(part) for part in own_parts(range(33), 32)] == [16, 17]
    assert [len(part) for part in own_parts(range(7), 3)] == [2, 2, 3]
    assert own_parts([2, 0], 1) == [[0], [2]]
    plain = build("fedavg", {"batch_size": 10})
    assert most_together(plain, "train", parameters=1000) == 32
    assert most_together(plain, "train", parameters=1 << 23) == 2
    assert most_together(plain, "train", parameters=1 << 25) == 1
    assert most_together(build("fedavg", {"batch_size": 512}), "train", parameters=1000) == 4
    assert most_together(build("fedavg", {"batch_size": 0}), "train", parameters=1000) == 2
    assert most_together(plain, "evaluate", parameters=1000) == 32


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("fedprox", [{"mu": 0.0}, {"mu": 1.0}]),
        ("fediir", [{"gamma": 0.0}, {"gamma": 1.0}]),
        ("fedcir", [{"lambda_align": 0.0}, {"lambda_align": 1.0}]),
        ("fedcir", [{"lambda_reg": 0.0}, {"lambda_reg": 1.0}]),
    ],
)
def test_the_weight_of_a_penalty_changes_what_clients_send(
    name: str, weights: list[dict[str, Any]], only_stacks: None
) -> None:
    settings: dict[str, Any] = {"batch_size": 8, **({"warmup": 0} if name == "fedcir" else {})}
    sent = []
    for weight in weights:
        replies = one_round_on_both(build(name, {**settings, **weight}, rounds=2), PLAIN)[1][0]
        sent.append(torch.stack([replies["train", client, "update"] for client in range(4)]))
    assert far(sent[1], sent[0]) > 1e-4


class Gate(nn.Module):
    """Looks at the numbers to decide what to do."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


class Counts(nn.Module):
    """Counts its calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Hides(nn.Module):
    """Holds its weight in a list besides, and uses that."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self._hidden = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x * self._hidden[0]


@pytest.fixture
def own_featurizers() -> Iterator[None]:
    known = dict(FEATURIZERS)
    for layer in (Gate, Noise, Counts, Hides, nn.ReLU, nn.GELU):

        @featurizer(f"test-{layer.__name__.lower()}")
        def made(spec: ModelSpec, layer: type[nn.Module] = layer) -> tuple[nn.Module, int]:
            return nn.Sequential(nn.Conv2d(1, 2, 3, stride=3), layer(), nn.Flatten()), 50

    yield
    FEATURIZERS.clear()
    FEATURIZERS.update(known)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            "gate",
            "cannot be computed by torch.func (RuntimeError: vmap: It looks like you're attempting to use a Tensor",
        ),
        ("noise", "cannot be computed by torch.func (RuntimeError: vmap: called random operation while in randomness"),
        ("counts", "changes its buffers, and these are each client's own"),
        ("hides", "gives other features under torch.func than without it"),
    ],
)
def test_a_featurizer_that_it_cannot_compute_is_named_with_the_reason(
    layer: str, reason: str, own_featurizers: None
) -> None:
    spec = PLAIN.model_copy(update={"featurizer": f"test-{layer}"})
    model = build_model(spec, 0)
    before = model.state()
    assert (why_not_functional(model) or "").startswith(f"the featurizer 'test-{layer}' {reason}")
    assert model.state().sha256() == before.sha256()


def test_a_featurizer_of_ones_own_is_stacked(own_featurizers: None, only_stacks: None) -> None:
    for layer in ("relu", "gelu"):
        spec = PLAIN.model_copy(update={"featurizer": f"test-{layer}"})
        (_, (truth,)), (_, (given,)) = one_round_on_both(build("fedavg", {"batch_size": 32}), spec)
        assert far(given, truth) < 1e-6


def test_models_that_are_not_stacked_are_named_with_the_reason() -> None:
    def why(algorithm: str = "fedavg", settings: dict[str, Any] | None = None, **changes: Any) -> str | None:
        model = build_model(GROUPS.model_copy(update=changes), 0)
        return why_alone(build(algorithm, settings or {}), "train", model, functional=True)

    assert why() is None
    assert why(norm="average") == "the norm policy 'average' has BatchNorm, whose statistics are each client's own"
    assert why(norm="freeze") == "the norm policy 'freeze' has BatchNorm, whose statistics are each client's own"
    assert why(dropout=0.1) == "dropout draws random numbers inside the layers"
    assert why(precision="bfloat16") == "in bfloat16 a stack would round otherwise than its clients"
    assert why(settings={"privacy": "record", "clip": 1.0, "noise": 1.0}) == (
        "privacy=record clips the gradient of each row"
    )
    assert why("fediir", head="mlp") == (
        "fediir takes second derivatives where its head is not linear or classes have weights"
    )


def test_without_being_asked_for_it_convolutions_have_the_bits_of_the_local_engine() -> None:
    (asked,) = asked_of([("fedavg", {"batch_size": 8})], [PLAIN])
    unasked = replace(asked, functional=False)
    outcomes = serve([unasked], RowPool())[0]
    alone = [requests.run_phase(*run_alone(unasked, client)) for client in unasked.clients]
    assert torch.equal(updates(outcomes), updates(alone))
    assert not any(outcome.note for outcome in outcomes)
    assert not torch.equal(updates(serve([asked], RowPool())[0]), updates(alone))


def run_alone(request: Request, client: int) -> tuple[Any, ...]:
    return (request.algorithm, request.phase, request.model, request.broadcast, request.client(client), request.shared)


def test_an_event_says_why_clients_are_run_one_by_one() -> None:
    spec = GROUPS.model_copy(update={"dropout": 0.1})
    algorithm = build("fedavg", {"batch_size": 8})
    alone, stacked = engines(algorithm, spec, sites())
    states = []
    for fed in (alone, stacked):
        state = algorithm.start(build_model(spec, 0).state())
        for number in (1, 2):
            fed.begin(number, range(fed.clients))
            state = replace(algorithm.round(fed, state), round=number)
        states.append(state.model.sha256())
    assert states[0] == states[1]
    (note,) = [event for event in stacked.events if event.kind == "note"]
    assert (note.round, note.phase) == (1, "train")
    assert note.message == (
        "the clients of this phase are run one by one, with the bits of the local engine: dropout draws random numbers "
        "inside the layers"
    )


def test_a_stack_for_which_the_memory_does_not_suffice_is_run_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    (request,) = asked_of([("fedavg", {"batch_size": 8})], [PLAIN])
    alone = updates([requests.run_phase(*run_alone(request, client)) for client in request.clients])
    monkeypatch.setattr(requests, "train_together", full)
    pool = RowPool()
    before = pool.stack_numbers
    outcomes = serve([request], pool)[0]
    assert torch.equal(updates(outcomes), alone)
    assert pool.stack_numbers == before
    assert [outcome.note for outcome in outcomes] == [
        "the clients of this phase are run one by one, with the bits of the local engine: the memory did not suffice "
        "for a stack of 4",
        "",
        "",
        "",
    ]


def test_the_parts_of_a_stack_are_stacks_on_the_same_numbers() -> None:
    model = build_model(GROUPS, 0)
    stack = FunctionalStack(model, torch.stack([model.vector, 2 * model.vector, 3 * model.vector]))
    x = torch.rand(2, 5, *SHAPE)
    part = stack.part(slice(1, 3))
    assert isinstance(part, FunctionalStack)
    part.vector.mul_(0.5)
    stack.eval()
    with torch.no_grad():
        torch.testing.assert_close(stack.part(slice(1, 3)).features(x)[0], model.features(x[0]))
    assert not model.training
