"""Whole rounds with clients on a device that is pretended: nothing mixes, and the numbers are those of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms import FedAvg, build, method
from farfield.deployment.site.plausible_model import Reference, measure_reference
from farfield.federation import device_rows
from farfield.federation.client import Batch
from farfield.federation.engine import Engine
from farfield.federation.engines.batched import requests
from farfield.federation.engines.batched.engine import BatchedFederation
from farfield.federation.engines.local import LocalFederation
from farfield.federation.federation import QuorumMissed
from farfield.federation.population import Population
from farfield.models import Model, ModelSpec, ModelState, build_model
from farfield.protocol.measurement import HeldOut
from farfield.reproducibility.devices import CPU
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain
from tests import toy
from tests.battery import methods
from tests.devices.pretended import MixedDevices, pretended, pretended_device

pytestmark = pytest.mark.pretended_gpu

GPU = pretended_device()
ROUNDS = 2
ENGINES = {"local": LocalFederation, "batched": BatchedFederation}
CONVNET = ModelSpec(
    featurizer="convnet", input_shape=(3, 8, 8), outputs=3, hidden=(4, 4), norm="average", dropout=0.2, head="mlp"
)
ALL = [*methods.single(), *methods.one_per_server_half("devices")]


def rounds(
    algorithm: FedAvg, device: torch.device, engine: str = "local", spec: ModelSpec = toy.SPEC, augment: str = "none"
) -> tuple[ModelState, dict[str, Any]]:
    """The model after some rounds, and the figures of its validation and of a held-out domain."""
    spec = algorithm.model_for(spec)
    chosen = [shaped(domain, spec) for domain in toy.domains(3)]
    clients = make_clients(
        chosen,
        partition=Partition(kind="pooled" if algorithm.pooled else "domain"),
        clients=None,
        validation=0.2,
        seed=0,
        kind="classification",
    )
    population = Population(chosen, clients, augment=augment, device=device)
    model = build_model(spec, seed=0)
    fed: Engine = ENGINES[engine](algorithm, model, population, seed=0)
    with fed:
        state = algorithm.start(model.state())
        for number in range(1, ROUNDS + 1):
            fed.begin(round=number, cohort=range(fed.clients))
            state = algorithm.round(fed, state)
        replies = fed.map_over(population.with_validation_rows(), algorithm.evaluate, state.model)
    assert fed.events == []
    shown = [name for name in ("loss", "accuracy") if replies.shows(name)]
    figures = {f"{reply.client} {name}": reply.values[name] for reply in replies for name in shown}
    held_out = HeldOut(shaped(toy.domain("z"), spec), "classification", spec, device=device)
    return state.model, {**figures, **held_out.measure(algorithm.models(state))}


def shaped(domain: Domain, spec: ModelSpec) -> Domain:
    """The toy's rows as images where the model takes images, in whole pixel values."""
    if len(spec.input_shape) == 1:
        return domain
    pixels = domain.x.repeat(1, 48).view(-1, *spec.input_shape).clamp(0, 1)
    return Domain(domain.name, (255 * pixels).to(torch.uint8), domain.y)


def assert_same(there: tuple[ModelState, dict[str, Any]], here: tuple[ModelState, dict[str, Any]]) -> None:
    assert there[0].parameters.device == CPU
    assert torch.equal(there[0].parameters, here[0].parameters)
    assert torch.equal(there[0].buffers, here[0].buffers)
    assert there[1] == here[1]


@pytest.fixture(autouse=True)
def _no_silent_retreat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what goes wrong in a stack of clients be seen, instead of the clients being run one by one."""

    def seen(error: BaseException) -> bool:
        raise error

    monkeypatch.setattr(requests, "out_of_memory", seen)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ALL)
def test_rounds_mix_no_devices_and_have_the_numbers_of_the_cpu(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build(name, methods.SETTINGS, ROUNDS)
    here = rounds(algorithm, CPU, engine)
    with pretended(monkeypatch):
        there = rounds(algorithm, GPU, engine)
    assert_same(there, here)


@pytest.mark.parametrize("name", ["fedavg", "fediir", "fedcir", "fedilc-inter-geo", "fedloe-irm", "scaffold"])
def test_a_convolutional_model_with_statistics_dropout_and_augmented_images(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build(name, methods.SETTINGS, ROUNDS)
    here = rounds(algorithm, CPU, spec=CONVNET, augment="standard")
    with pretended(monkeypatch):
        there = rounds(algorithm, GPU, spec=CONVNET, augment="standard")
    assert_same(there, here)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {"class_weights": "balanced"}),
        ("fedavg", {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0}),
        ("fedavg", {"optimizer": "adam"}),
        ("fedavg", {"privacy": "record", "clip": 1.0, "noise": 1.0}),
        ("fedavg", {"secure_sums": True}),
        ("fediir", {"gradient_average": "batches", "class_weights": "balanced"}),
        ("fedilc-intra-geo", {"inner": "samples"}),
        ("fedilc-intra-geo", {"zeros": "published"}),
    ],
)
def test_settings_that_compute_otherwise(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build(name, {**methods.SETTINGS, **settings}, ROUNDS)
    here = rounds(algorithm, CPU)
    with pretended(monkeypatch):
        there = rounds(algorithm, GPU)
    assert_same(there, here)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("free", "held"), [(1 << 30, True), (64, False)])
def test_rows_live_on_the_device_where_they_fit_and_are_streamed_where_not(
    engine: str, free: int, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build("fedavg", methods.SETTINGS, ROUNDS)
    here = rounds(algorithm, CPU, engine)
    with pretended(monkeypatch, free=free):
        kept: list[bool] = []
        read = device_rows.DeviceRows.read

        def reading(self: device_rows.DeviceRows, tensor: Tensor, rows: Tensor) -> Tensor:
            found = read(self, tensor, rows)
            kept.append(self.holds(tensor))
            return found

        monkeypatch.setattr(device_rows.DeviceRows, "read", reading)
        there = rounds(algorithm, GPU, engine)
    assert set(kept) == {held}
    assert_same(there, here)


@pytest.mark.parametrize("name", methods.single())
def test_clients_compute_in_float64_where_the_method_says_so_and_nowhere_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build(name, methods.SETTINGS, ROUNDS)
    with pretended(monkeypatch, float64=False):
        if not method(name).float64_at_clients:
            assert_same(rounds(algorithm, GPU), rounds(algorithm, CPU))
            return
        with pytest.raises(QuorumMissed, match="float64"):
            rounds(algorithm, GPU)


def test_a_site_measures_its_reference_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build("fedavg", methods.SETTINGS, ROUNDS)

    def reference(device: torch.device) -> Reference:
        chosen = toy.domains(2)
        clients = make_clients(
            chosen, partition=Partition(kind="domain"), clients=None, validation=0.2, seed=0, kind="classification"
        )
        client = Population(chosen, clients, device=device).client(0, seed=0, round=1, phase="train", state={})
        return measure_reference(algorithm, client, toy.SPEC, 0)

    here = reference(CPU)
    with pretended(monkeypatch):
        assert reference(GPU) == here


class Careless(FedAvg):
    """Makes a tensor on the CPU in its loss."""

    name = "careless"
    stackable = True

    def loss(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        outputs = model(batch.x)
        return super().loss(model, batch, **shared) + (outputs + torch.zeros(3)).square().mean(dim=(-1, -2))


def test_a_tensor_made_on_the_cpu_in_a_loss_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = Careless(Careless.Params(**methods.SETTINGS))
    rounds(algorithm, CPU)
    rounds(algorithm, CPU, "batched")
    with pretended(monkeypatch):
        with pytest.raises(QuorumMissed, match="MixedDevices: Expected all tensors to be on the same device"):
            rounds(algorithm, GPU)
        with pytest.raises(MixedDevices):
            rounds(algorithm, GPU, "batched")


def test_a_state_that_is_kept_on_the_cpu_and_two_gpus_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(monkeypatch):
        one, two = torch.ones(3, device=GPU), torch.ones(3, device=pretended_device(1))
        with pytest.raises(MixedDevices):
            one + two
        with pytest.raises(MixedDevices):
            torch.zeros(()).add_(one.sum())
        with pytest.raises(TypeError, match="numpy"):
            one.numpy()
        assert (one + torch.ones(())).tolist() == [2.0, 2.0, 2.0]
        assert float(one.cpu() @ two.cpu()) == 3.0
