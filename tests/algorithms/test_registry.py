"""Names, compositions and parameters: what is offered, what is refused, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field
from torch import Tensor

from farfield.algorithms import (
    AlgorithmError,
    Direction,
    FedAvg,
    build,
    method,
    names,
    params_of,
    parts,
    register,
    registry,
    use,
)
from farfield.errors import UserError
from tests.algorithms.linear import replies, weights


@pytest.fixture
def own_registry() -> Iterator[None]:
    """Methods registered in a test are gone after it, and so are the files that brought them."""
    before = set(registry._METHODS)
    yield
    for name in set(registry._METHODS) - before:
        del registry._METHODS[name]
    for module in [m for m in sys.modules if m.startswith("farfield_used_test_")]:
        del sys.modules[module]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fedavgg", "unknown algorithm 'fedavgg'; did you mean 'fedavg'?"),
        ("fedporx+fedadam", "unknown algorithm 'fedporx'; did you mean 'fedprox'?"),
        ("fedavg+fedadm", "unknown algorithm 'fedadm'; did you mean 'fedadam'?"),
        ("FedAvg", "unknown algorithm 'FedAvg'; did you mean 'fedavg'?"),
        ("erm+fedadam", "'erm+fedadam' cannot work: erm pools the data"),
        ("local-only+fedavgm", "'local-only+fedavgm' cannot work: local-only never aggregates"),
        ("fedavg+fedprox", "'fedavg+fedprox' cannot work: fedprox has no server half; after a '+' can stand "),
        ("fedavgm+fedadam", "'fedavgm+fedadam' cannot work: fedavgm and fedadam both bring the optimizer"),
        ("fedavg+fedadam+fedyogi", "cannot work: fedadam and fedyogi both bring the optimizer"),
        ("fedprox+fedadam+fedadam", "cannot work: fedadam and fedadam both bring the optimizer"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(name: str, sentence: str) -> None:
    with pytest.raises(AlgorithmError) as caught:
        build(name)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_a_name_that_nobody_could_mean_gets_the_list() -> None:
    with pytest.raises(AlgorithmError, match=r"unknown algorithm 'xyzzy'; choose one of .*fedavg, .*scaffold"):
        build("xyzzy")


def test_what_can_stand_after_a_plus_is_named_in_the_refusal() -> None:
    with pytest.raises(AlgorithmError) as caught:
        parts("fedavg+scaffold")
    offered = str(caught.value).partition("can stand ")[2].split(", ")
    assert offered == [n for n in names() if method(n).server_half]
    assert {"fedadam", "fedavgm", "fedyogi"} <= set(offered)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("fedavg", {"lrr": 0.1}, "fedavg has no parameter 'lrr'; did you mean 'lr'?"),
        ("fedavg", {"mu": 0.1}, "fedavg has no parameter 'mu'; it has lr, batch_size, "),
        (
            "fedprox+fedadam",
            {"server_rl": 0.1},
            "fedprox+fedadam has no parameter 'server_rl'; did you mean 'server_lr'?",
        ),
        ("fedavg", {"lr": -1.0}, "fedavg: lr = -1.0: input should be greater than 0"),
        ("fedavg", {"lr": float("nan")}, "fedavg: lr = nan: input should be a finite number"),
        ("fedavg", {"lr": "fast"}, "fedavg: lr = 'fast': input should be a valid number"),
        ("fedprox", {"mu": -0.1}, "fedprox: mu = -0.1: input should be greater than or equal to 0"),
        ("fedprox+fedadam", {"mu": -0.1}, "fedprox+fedadam: mu = -0.1: input should be greater than or equal to 0"),
        ("fedprox+fedadam", {"server_lr": 0.0}, "fedprox+fedadam: server_lr = 0.0: input should be greater than 0"),
        ("fedavg", {"optimizer": "sdg"}, "fedavg: optimizer = 'sdg': input should be 'sgd' or 'adam'"),
        ("fedavg", {"local_steps": 0}, "fedavg: local_steps = 0: input should be greater than or equal to 1"),
        ("scaffold", {"momentum": 0.9}, "scaffold keeps the mean gradient of plain local SGD as its control variate"),
        ("scaffold+fedadam", {"optimizer": "adam"}, "scaffold keeps the mean gradient of plain local SGD"),
    ],
)
def test_a_parameter_that_cannot_be_is_one_sentence(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AlgorithmError) as caught:
        build(name, settings)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_composition_has_the_clients_parameters_and_the_servers_defaults() -> None:
    params = build("fedprox+fedadam").params
    assert params.mu == 0.1
    assert (params.server_optimizer, params.server_lr, params.server_momentum) == ("adam", 0.03, 0.9)
    assert (params.server_beta2, params.server_epsilon) == (0.99, 1e-3)
    assert (params.lr, params.weighting) == (0.1, "samples")
    assert build("scaffold+fedavgm").params.weighting == "uniform"
    assert build("scaffold+fedavgm").params.server_momentum == 0.9


def test_what_is_set_wins_over_both_parts() -> None:
    params = build("fedprox+fedadam", {"mu": 0.5, "server_lr": 0.2, "server_momentum": 0.0, "lr": 0.7}).params
    assert (params.mu, params.server_lr, params.server_momentum, params.lr) == (0.5, 0.2, 0.0, 0.7)
    assert params.server_optimizer == "adam"


def test_composing_changes_neither_part() -> None:
    build("fedprox+fedadam")
    assert build("fedprox").params.server_optimizer == "sgd"
    assert not hasattr(build("fedadam").params, "mu")
    assert params_of("fedprox") is method("fedprox").Params


def test_a_composition_is_the_clients_method() -> None:
    algorithm = build("fedprox+fedadam")
    assert type(algorithm) is method("fedprox")
    assert algorithm.server is None  # an optimizer brings parameters only
    client, servers = parts(" fedprox + fedadam ")
    assert (client.name, [s.name for s in servers]) == ("fedprox", ["fedadam"])


class Halving(FedAvg):
    """Its own mean is half of the sum of the updates, whatever the weights."""

    name: ClassVar[str] = "test-halving"

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        return 0.5 * updates.sum(0)


class Turning(FedAvg):
    """Turns the reference round and scales it."""

    name: ClassVar[str] = "test-turning"
    server_half: ClassVar[frozenset[str]] = frozenset({"rule"})
    seen: ClassVar[list[tuple[Tensor, Tensor, Tensor]]] = []

    class Params(FedAvg.Params):
        turn: float = Field(3.0, ge=0, description="how far")

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        raise AssertionError("the server's own mean has no say here")

    def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> tuple[Tensor, Mapping[str, float]]:
        self.seen.append((updates, weights, reference))
        return Direction(-self.params.turn * reference, {"turned": self.params.turn})


@pytest.mark.usefixtures("own_registry")
def test_a_server_rule_gets_the_clients_own_direction_as_reference() -> None:
    register(Halving)
    register(Turning)
    sent = replies(
        {"update": torch.tensor([1.0, 0.0]), "loss": 1.0},
        {"update": torch.tensor([5.0, 2.0]), "loss": 2.0},
        samples=[10, 30],
    )
    algorithm = build("test-halving+test-turning", {"turn": 2.0})
    assert isinstance(algorithm.server, Turning)
    Turning.seen.clear()
    aggregate = algorithm.aggregate(sent)
    ((updates, shares, reference),) = Turning.seen
    assert updates.tolist() == [[1.0, 0.0], [5.0, 2.0]]
    assert shares.tolist() == [0.25, 0.75]
    assert reference.tolist() == [3.0, 1.0]  # half of the sum, not the mean (4, 1.5)
    assert aggregate.direction.tolist() == [-6.0, -2.0]
    assert {"loss": 1.75, "turned": 2.0}.items() <= aggregate.diagnostics.items()
    assert aggregate.diagnostics["cosine of site-0"] == pytest.approx(-3 / 10**0.5)
    after = algorithm.start(weights(1.0, 1.0)).step(aggregate)
    assert after.model.parameters.tolist() == [-5.0, -1.0]

    # Under fedavg's clients the same rule gets fedavg's mean, and alone a method rules over its own.
    assert build("fedavg+test-turning").aggregate(sent).direction.tolist() == [-12.0, -4.5]
    assert build("test-halving").aggregate(sent).direction.tolist() == [3.0, 1.0]


@pytest.mark.usefixtures("own_registry")
def test_a_rule_and_an_optimizer_can_stand_together_in_any_order() -> None:
    register(Turning)
    sent = replies({"update": torch.tensor([1.0]), "loss": 1.0})
    for name in ("fedprox+test-turning+fedavgm", "fedprox+fedavgm+test-turning"):
        algorithm = build(name, {"mu": 0.3})
        assert (algorithm.params.mu, algorithm.params.turn, algorithm.params.server_momentum) == (0.3, 3.0, 0.9)
        state = algorithm.start(weights(0.0))
        for _ in range(2):
            state = state.step(algorithm.aggregate(sent))
        assert state.model.parameters.tolist() == pytest.approx([-3.0 - 5.7])  # −3, then 0.9·(−3) − 3
    with pytest.raises(AlgorithmError, match="test-turning and test-turning both bring the rule"):
        build("fedavg+test-turning+test-turning")


@pytest.mark.usefixtures("own_registry")
def test_a_parameter_in_both_parts_is_refused() -> None:
    class Proximal(FedAvg):
        name: ClassVar[str] = "test-proximal"
        server_half: ClassVar[frozenset[str]] = frozenset({"rule"})

        class Params(FedAvg.Params):
            mu: float = Field(1.0, description="something else called mu")

    register(Proximal)
    with pytest.raises(
        AlgorithmError, match=r"'fedprox\+test-proximal' cannot work: the parameter 'mu' is in both parts"
    ):
        build("fedprox+test-proximal")
    assert build("fedavg+test-proximal").params.mu == 1.0


@pytest.mark.usefixtures("own_registry")
def test_a_name_that_is_taken_or_cannot_be_typed_is_refused() -> None:
    with pytest.raises(AlgorithmError, match=r"the name 'fedavg' is taken by farfield\.algorithms\.fedavg\.FedAvg"):
        register(type("Mine", (FedAvg,), {"name": "fedavg"}))
    for bad in ("a+b", "FedMine", ""):
        with pytest.raises(AlgorithmError, match="cannot name a method"):
            register(type("Mine", (FedAvg,), {"name": bad}))
    assert method("fedavg") is FedAvg


@pytest.mark.usefixtures("own_registry")
def test_a_file_of_ones_own_brings_its_methods(tmp_path: Path) -> None:
    path = tmp_path / "test_own_method.py"
    path.write_text(
        "from farfield.algorithms import FedAvg, register\n"
        "@register\n"
        "class Own(FedAvg):\n"
        "    name = 'test-own'\n"
        "    def combine(self, updates, weights):\n"
        "        return updates.max(0).values\n"
    )
    use(path)
    sent = replies({"update": torch.tensor([1.0, 4.0])}, {"update": torch.tensor([3.0, 2.0])})
    assert build("test-own").aggregate(sent).direction.tolist() == [3.0, 4.0]
    assert "test-own" in names()


def test_a_file_that_is_not_there_or_does_not_import_says_so(tmp_path: Path) -> None:
    with pytest.raises(AlgorithmError, match=r"there is no file '.*nowhere\.py' to take methods from"):
        use(tmp_path / "nowhere.py")
    broken = tmp_path / "broken_method.py"
    broken.write_text("raise KeyError('oh')\n")
    with pytest.raises(AlgorithmError, match=r"broken_method\.py' does not import: KeyError: 'oh'"):
        use(broken)


def test_nothing_registered_in_these_tests_is_left() -> None:
    assert [n for n in names() if n.startswith("test-")] == []
