"""Local training in which each row is protected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from farfield.algorithms import AlgorithmError, FedAvg, State, build
from farfield.federation.engine import Engine
from farfield.federation.phase import declared_phases
from farfield.models import ModelSpec, build_model
from farfield.privacy.record_level import sampling_rate, steps_in_round
from farfield.privacy.release import Release, release_of, releases_of
from farfield.tasks.task import Domain
from tests.algorithms.linear import SPEC as WEIGHTS
from tests.battery.methods import make
from tests.battery.test_battery import trained
from tests.toy import domains, federation, initial, sent

PRIVATE = {"privacy": "record", "clip": 1.0, "noise": 1.0}
#: Clipping that cuts nothing and no noise: all that is left is how batches are drawn.
LIMIT = {"privacy": "record", "clip": 1e9, "noise": 0.0}
METHODS = ("fedavg", "fedprox", "scaffold", "fedsgd", "fedavg+fedomg", "fedprox+fedadam", "erm")


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_and_with_full_batches_private_training_is_the_plain_one(name: str) -> None:
    settings: dict[str, Any] = {"batch_size": 0, "local_epochs": 3}
    plain, _ = trained(make(name, **settings), domains(2), rounds=3)
    private, _ = trained(make(name, **settings, **LIMIT), domains(2), rounds=3)
    assert torch.allclose(private.model.parameters, plain.model.parameters, atol=1e-6)
    assert not torch.allclose(plain.model.parameters, initial().vector, atol=1e-3)


def test_noise_changes_the_result_and_the_seed_repeats_it() -> None:
    plain, _ = trained(make("fedavg", **LIMIT), domains(2))
    first, _ = trained(make("fedavg", **PRIVATE), domains(2))
    again, _ = trained(make("fedavg", **PRIVATE), domains(2))
    assert torch.equal(first.model.parameters, again.model.parameters)
    assert float((first.model.parameters - plain.model.parameters).norm()) > 0.1


def test_two_workers_and_permuted_clients_change_nothing() -> None:
    chosen = domains(3)
    alone, _ = trained(make("scaffold", **PRIVATE), chosen)
    two, _ = trained(make("scaffold", **PRIVATE), chosen, workers=2)
    assert torch.equal(alone.model.parameters, two.model.parameters)
    turned, _ = trained(make("scaffold", **PRIVATE), chosen[::-1])
    assert torch.allclose(alone.model.parameters, turned.model.parameters, atol=1e-5)


def test_a_step_worked_out_by_hand() -> None:
    """Two rows of lengths 5 and 1, cut to 2: (1.2, 1.6) + (0, 1), by two rows, times the step size."""
    domain = Domain("a", torch.tensor([[3.0, 4.0], [0.0, 1.0]] * 3), torch.zeros(6))

    class RowSums(FedAvg):
        supports = replace(FedAvg.supports)

        def loss(self, model: Any, batch: Any, **shared: Any) -> Any:
            return model(batch.x).mean()

        def row_losses(self, model: Any, batch: Any, **shared: Any) -> Any:
            return model(batch.x).squeeze(-1)

    settings = FedAvg.Params(lr=0.5, batch_size=0, privacy="record", clip=2.0, noise=0.0)
    with federation(RowSums(settings), [domain], WEIGHTS) as fed:
        fed.begin(1, [0])
        start = build_model(WEIGHTS, seed=0)
        (values,) = sent(fed, RowSums(settings).train, start.state())
        rows = fed._population.client(0, seed=0, round=1, phase="train", state={}).training.all().x
    long = int((rows[:, 0] > 0).sum())
    cut = torch.tensor([1.2, 1.6]) * long + torch.tensor([0.0, 1.0]) * (len(rows) - long)
    assert torch.allclose(values["update"], -0.5 * cut / len(rows), rtol=1e-5)
    assert list(values) == ["update"]


def test_the_noise_of_an_update_has_the_promised_spread() -> None:
    """One full-batch step of rate 1: the update is the mean gradient with noise of z C / n in each of its entries."""
    wide = ModelSpec(featurizer="mlp", input_shape=(4,), outputs=3, hidden=(4000,))
    settings = {"lr": 1.0, "batch_size": 0, "local_steps": 1, "clip": 0.5}
    updates = []
    for noise in (0.0, 4.0):
        algorithm = build("fedavg", {**settings, "privacy": "record", "noise": noise})
        with federation(algorithm, domains(1), wide) as fed:
            fed.begin(1, [0])
            (values,) = sent(fed, algorithm.train, build_model(wide, seed=0).state())
            rows = fed._population.client(0, seed=0, round=1, phase="train", state={}).samples
        updates.append(values["update"])
    noise = (updates[1] - updates[0]).double() * rows / (4.0 * 0.5)
    entries = len(noise)
    assert float(noise.square().mean()) == pytest.approx(1.0, abs=6 * (2 / entries) ** 0.5)
    assert float(noise.mean()) == pytest.approx(0.0, abs=6 / entries**0.5)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_leaves_but_what_is_made_from_noised_gradients(name: str) -> None:
    algorithm = make(name, **PRIVATE)
    declared = declared_phases(algorithm)
    for phase in (*algorithm.phases, "evaluate"):
        allowed = {"update", "gradient", "control_change"}
        assert set(declared[phase]) <= allowed
    assert declared["evaluate"] == {}
    with federation(algorithm, domains(1)) as fed:
        fed.begin(1, range(fed.clients))
        for values in sent(fed, algorithm.evaluate, initial().state()):
            assert values == {}


def test_the_size_of_a_batch_does_not_leave_with_the_reply() -> None:
    algorithm = make("fedavg", **PRIVATE)
    for seed in (0, 1, 2):
        with federation(algorithm, domains(1)) as fed:
            fed._seed = seed
            fed.begin(1, [0])
            fed.map(algorithm.train, initial().state())
            steps, examples = fed.traffic.local_steps, fed.traffic.examples
            rows = fed.told_rows[0]
        assert (steps, examples) == (-(-rows // 8), 8 * -(-rows // 8))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fediir", "one row has no bounded part"),
        ("fedcir", "one row has no bounded part"),
        ("fedilc-inter-geo", "one row has no bounded part"),
        ("fedloe-irm", "predictions and labels of single tuning rows"),
        ("local-only", "whole models of single clients"),
        ("prior", "counts labels exactly"),
    ],
)
def test_methods_without_a_bound_on_rows_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(AlgorithmError, match=reason):
        build(name, PRIVATE)


def test_settings_that_break_the_promise_are_refused() -> None:
    with pytest.raises(AlgorithmError, match="needs clip and noise"):
        build("fedavg", {"privacy": "record"})
    with pytest.raises(AlgorithmError, match="needs noise"):
        build("fedavg", {"privacy": "record", "clip": 1.0})
    with pytest.raises(AlgorithmError, match="set class_weights=none"):
        build("fedavg", {**PRIVATE, "class_weights": "balanced"})
    images: dict[str, Any] = {"featurizer": "convnet", "input_shape": (1, 8, 8), "outputs": 3, "hidden": (2,)}
    for norm in ("average", "local"):
        with pytest.raises(AlgorithmError, match="mixes the rows of a batch"):
            build("fedavg", PRIVATE).check(ModelSpec(**images, norm=norm), "classification", 2)


def test_a_class_with_code_at_the_client_promises_no_privacy_by_accident() -> None:
    class Peeking(FedAvg):
        def before_training(self, client: Any, model: Any, **shared: Any) -> Any:
            return {}

    class OtherLoss(FedAvg):
        def loss(self, model: Any, batch: Any, **shared: Any) -> Any:
            return FedAvg.loss(self, model, batch)

    class Mixed(type("Mixin", (), {"loss": OtherLoss.loss}), FedAvg):  # type: ignore[misc]
        pass

    for cls in (Peeking, OtherLoss, Mixed):
        with pytest.raises(AlgorithmError, match="does not say how much one row changes"):
            cls(FedAvg.Params(**PRIVATE)).check_settings()
        with pytest.raises(AlgorithmError, match="does not say what of its replies gets noise"):
            cls(FedAvg.Params(**{**PRIVATE, "privacy": "client", "weighting": "uniform"})).check_settings()
    with pytest.raises(TypeError, match="needs its 'row_losses' too"):
        type("Deaf", (FedAvg,), {"loss": OtherLoss.loss, "supports": FedAvg.supports})


@pytest.mark.parametrize(
    ("settings", "rows", "expected"),
    [
        ({"batch_size": 8, "local_epochs": 2}, 32, Release(1.0, 0.25, 8)),
        ({"batch_size": 8, "local_epochs": 1}, 33, Release(1.0, 8 / 33, 5)),
        ({"batch_size": 64}, 33, Release(1.0, 1.0, 1)),
        ({"batch_size": 0, "local_steps": 7}, 33, Release(1.0, 1.0, 7)),
    ],
)
def test_releases_are_counted_by_rows_batches_and_epochs(settings: Any, rows: int, expected: Release) -> None:
    algorithm = build("fedavg", {**PRIVATE, **settings})
    assert release_of(algorithm, "train", 1, rows) == expected
    assert release_of(algorithm, "evaluate", 1, rows) is None
    assert releases_of(algorithm, 3, rows) == {expected: 3}


def test_a_schedule_of_epochs_is_accounted_round_by_round() -> None:
    algorithm = build("fedavg", {**PRIVATE, "batch_size": 10, "schedule": (1, 3)})
    assert releases_of(algorithm, 3, 20) == {Release(1.0, 0.5, 2): 1, Release(1.0, 0.5, 6): 2}


@pytest.mark.parametrize("settings", [{}, {"local_epochs": 2}, {"local_steps": 3}, {"batch_size": 0}])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsgd"])
def test_the_steps_that_are_accounted_are_the_steps_that_are_made(name: str, settings: dict[str, Any]) -> None:
    algorithm = make(name, **PRIVATE, **settings)
    fed: Engine
    with federation(algorithm, domains(2)) as fed:
        fed.begin(1, range(2))
        state: State = algorithm.start(initial().state())
        algorithm.round(fed, state)
        accounted = [release_of(algorithm, algorithm.phases[0], 1, rows) for rows in fed.told_rows.values()]
        assert fed.traffic.local_steps == sum(release.steps for release in accounted if release is not None)


def test_rates_and_steps_are_those_of_an_epoch() -> None:
    assert sampling_rate(32, 320) == 0.1
    assert steps_in_round(None, 1, 32, 320) == 10
    assert steps_in_round(None, 1, 7, 49) == 7, "rounding must not make an eighth step"
    for rows in range(1, 400):
        assert steps_in_round(None, 1, 7, rows) == -(-rows // 7)
