"""What every method must pass, alone and as a part of compositions. A method joins by being registered.

A composition is tested once per server half and check, not in the full product: one check takes one client method for
each server half, the next check takes another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms import AlgorithmError, FedAvg, Local, State, method, names
from farfield.federation.client import Batch
from farfield.federation.phase import phases_of
from farfield.federation.reply_checks import SCALAR_BYTES
from farfield.models import ModelSpec, hash_states
from farfield.reproducibility.threads import one_thread
from farfield.runs.plan import Job, make_plan
from farfield.runs.single_run import run_job
from farfield.tasks.task import Domain
from tests.battery.methods import (
    can_be,
    clients_for,
    fewest_clients,
    idle_parameters,
    living_parameters,
    make,
    one_per_server_half,
    other_value,
    server_halves,
    single,
)
from tests.toy import SPEC, domains, federation, initial, population, task


def parametrized(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", list(names))


def methods(test: Callable[..., None]) -> Callable[..., None]:
    """Every method alone, and one composition per server half."""
    return parametrized([*single(), *one_per_server_half(test.__name__)])(test)


def federated_methods(test: Callable[..., None]) -> Callable[..., None]:
    """As `methods`, without pooled references: one client with all rows has no order, and no cohort to survive in."""
    names = [*single(), *one_per_server_half(test.__name__)]
    return parametrized(name for name in names if not make(name).pooled)(test)


def training_methods(test: Callable[..., None]) -> Callable[..., None]:
    """As `methods`, without references that train nothing: they have one round, and read labels alone."""
    names = [*single(), *one_per_server_half(test.__name__)]
    return parametrized(name for name in names if make(name).trains)(test)


single_methods = parametrized(single())


def changes_the_local_objective(name: str) -> bool:
    return any(getattr(method(name), hook) is not getattr(FedAvg, hook) for hook in ("loss", "penalty", "adjust"))


def spec_for(algorithm: FedAvg) -> ModelSpec:
    return algorithm.model_for(SPEC)


def weights_of(name: str) -> tuple[str, ...]:
    """The parameters that weigh a method's extra terms."""
    weight = method(name).penalty_weight
    return (weight,) if isinstance(weight, str) else weight or ()


class Spy:
    """A federation that lets someone see what goes out and what comes back, on the wire and not as a server sees it."""

    def __init__(self, fed: Any, see: Callable[[str, dict[str, Any], list[dict[str, Any]]], None]) -> None:
        self._fed, self._see = fed, see
        reach = fed._outcomes

        def outcomes(phase: str, model: Any, shared: dict[str, Any], clients: Any) -> Iterator[Any]:
            seen = list(reach(phase, model, shared, clients))
            see(phase, shared, [dict(outcome.values) for outcome in seen])
            yield from seen

        fed._outcomes = outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fed, name)


def trained(
    algorithm: FedAvg, chosen: Sequence[Domain], rounds: int = 3, spec: ModelSpec | None = None, **options: Any
) -> tuple[State, list[State]]:
    """The state after some rounds with all clients, and the states on the way."""
    spec = spec or spec_for(algorithm)
    algorithm.rounds = rounds
    with federation(algorithm, chosen, spec, **options) as fed:
        state = algorithm.start(initial(spec).state())
        states = []
        for number in range(1, rounds + 1):
            fed.begin(number, range(fed.clients))
            state = algorithm.round(fed, state)
            states.append(state)
    return state, states


def vector(algorithm: FedAvg, state: State) -> Tensor:
    return torch.cat([m.parameters for m in algorithm.models(state)])


@training_methods
def test_the_loss_falls_and_the_state_stays_finite(name: str) -> None:
    algorithm = make(name)
    # A method with one step per round gets more rounds.
    state, states = trained(algorithm, domains(2), rounds=12 * 3 if algorithm.single_step else 12)
    assert states[-1].diagnostics["loss"] < 0.9 * states[0].diagnostics["loss"]
    tensors = [vector(algorithm, state), *state.slots.values(), *state.extras.values()]
    assert all(bool(torch.isfinite(t).all()) for t in tensors)
    assert not torch.equal(vector(algorithm, state)[: SPEC.outputs], initial().vector[: SPEC.outputs])


@single_methods
def test_the_gradient_of_the_local_objective_equals_finite_differences(name: str) -> None:
    algorithm = make(name)
    model, local, batch = _local_step(algorithm)
    gradient = _gradient_at(algorithm, model, local, batch)

    def objective(parameters: Tensor) -> float:
        model.vector.copy_(parameters)
        torch.manual_seed(0)
        return float((algorithm.loss(model, batch, **local.shared) + algorithm.penalty(local)).detach())

    here = model.vector.clone()
    for seed in range(4):
        direction = torch.randn(len(here), generator=torch.Generator().manual_seed(seed), dtype=here.dtype)
        step = 1e-6
        slope = (objective(here + step * direction) - objective(here - step * direction)) / (2 * step)
        assert slope == pytest.approx(float(gradient @ direction), rel=1e-5, abs=1e-8)


@single_methods
def test_the_gradient_that_training_uses_is_that_of_the_loss(name: str) -> None:
    algorithm = make(name)
    model, local, batch = _local_step(algorithm)
    torch.manual_seed(0)
    loss = algorithm.loss(model, batch, **local.shared)
    model.backward(loss)
    expected = model.gradient.clone()
    torch.manual_seed(0)
    value = algorithm.local_gradient(model, batch, local)
    torch.testing.assert_close(value, loss.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(model.gradient, expected, rtol=1e-8, atol=1e-12)


@parametrized(n for n in single() if changes_the_local_objective(n))
def test_the_extra_term_is_alive(name: str) -> None:
    """A local objective that was changed must change the gradient: a penalty that is silently zero fails here."""
    algorithm = make(name)
    model, _, batch = _local_step(algorithm)
    model.backward(FedAvg.loss(algorithm, model, batch))
    plain = model.gradient.clone()
    assert float((_gradient(algorithm) - plain).norm()) > 1e-6 * float(plain.norm())


@single_methods
def test_a_weighted_term_names_its_weight(name: str) -> None:
    own = set(method(name).Params.model_fields) - set(FedAvg.Params.model_fields)
    if changes_the_local_objective(name) and own:
        assert weights_of(name)
        assert set(weights_of(name)) <= own


@pytest.mark.parametrize(("name", "parameter", "settings"), living_parameters(), ids=str)
def test_every_parameter_of_its_own_changes_the_result(name: str, parameter: str, settings: dict[str, Any]) -> None:
    """A parameter that does nothing is a term that is silently dead, wherever in the method it should have acted."""
    other = {**settings, parameter: other_value(name, parameter, settings)}
    results = [vector(a, trained(a, domains(2))[0]) for a in (make(name, **settings), make(name, **other))]
    assert not torch.equal(*results)


@pytest.mark.parametrize(("name", "settings", "idle"), idle_parameters(), ids=str)
def test_parameters_that_are_said_to_be_idle_change_nothing(
    name: str, settings: dict[str, Any], idle: list[str]
) -> None:
    others = {parameter: other_value(name, parameter, settings) for parameter in idle}
    results = [vector(a, trained(a, domains(2))[0]) for a in (make(name, **settings), make(name, **settings, **others))]
    assert torch.equal(*results)


@pytest.mark.parametrize(("name", "weight"), [(name, weight) for name in single() for weight in weights_of(name)])
def test_the_weight_of_an_extra_term_changes_the_result(name: str, weight: str) -> None:
    default = getattr(make(name).params, weight)
    # A term that must be there has no weight 0.
    values = [value for value in (0.0, default, 10 * default) if can_be(name, {weight: value})]
    assert len(values) > 1
    variants = [make(name, **{weight: value}) for value in values]
    results = [vector(v, trained(v, domains(2))[0]) for v in variants]
    gradients = [_gradient(v) for v in variants] if changes_the_local_objective(name) else results
    for low, high in pairwise(range(len(values))):
        assert not torch.equal(gradients[low], gradients[high])
        assert not torch.equal(results[low], results[high])


def _gradient(algorithm: FedAvg) -> Tensor:
    return _gradient_at(algorithm, *_local_step(algorithm))


def _gradient_at(algorithm: FedAvg, model: Any, local: Local, batch: Any) -> Tensor:
    """The gradient of the local objective; a term that draws noise draws the same every time."""
    torch.manual_seed(0)
    model.backward(algorithm.loss(model, batch, **local.shared))
    algorithm.adjust(model.gradient, local)
    gradient: Tensor = model.gradient.clone()
    return gradient


def _local_step(algorithm: FedAvg) -> tuple[Any, Local, Any]:
    """A client in the middle of its second round, in float64: the model has moved, and shared values are not zero."""
    captured: dict[str, Any] = {}
    spec = spec_for(algorithm)
    algorithm.rounds = 4
    with federation(algorithm, domains(2), spec) as fed:
        state = algorithm.start(initial(spec).state())
        for number in (1, 2):
            fed.begin(number, range(fed.clients))
            captured.clear()
            state = algorithm.round(Spy(fed, lambda phase, shared, replies: captured.update(shared)), state)
        stored = {k: v.double() for k, v in fed.states.get(0, {}).items()}
    torch.set_default_dtype(torch.float64)
    try:
        model = initial(spec)
    finally:
        torch.set_default_dtype(torch.float32)
    model.vector.copy_(state.model.parameters.double())
    start = model.vector.clone()
    model.vector.add_(0.05 * torch.randn(len(start), generator=torch.Generator().manual_seed(9), dtype=start.dtype))
    shared = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in captured.items()}
    client = population(domains(2), pooled=algorithm.pooled).client(0, seed=0, round=3, phase="train", state=stored)
    x, y = next(client.batches(8))
    prepared = algorithm.before_training(client, model, **shared)
    model.eval()  # no sampling: the objective must be a function of the parameters
    return model, Local(model.vector, start, {**shared, **prepared}), Batch(x.double(), y)


@parametrized(n for n in single() if method(n).fedavg_when is not None)
def test_with_the_settings_that_switch_it_off_it_is_fedavg(name: str) -> None:
    algorithm = make(name)
    assert algorithm.fedavg_when is not None
    off = make(name, **algorithm.fedavg_when)
    known = {k: v for k, v in algorithm.fedavg_when.items() if k in FedAvg.Params.model_fields}
    fedavg = make("fedavg", weighting=off.params.weighting, **known)
    spec = spec_for(off)
    torch.testing.assert_close(
        vector(off, trained(off, domains(3))[0]),
        vector(fedavg, trained(fedavg, domains(3), spec=spec)[0]),
        rtol=0,
        atol=1e-6,
    )


@parametrized(n for n in single() if method(n).fedavg_with_one_client)
def test_with_one_client_it_is_fedavg(name: str) -> None:
    algorithm = make(name)
    fedavg = make("fedavg")
    torch.testing.assert_close(
        vector(algorithm, trained(algorithm, domains(1))[0]),
        vector(fedavg, trained(fedavg, domains(1), spec=spec_for(algorithm))[0]),
        rtol=0,
        atol=1e-6,
    )


@parametrized(server_halves())
def test_every_composition_is_offered_or_refused_with_a_reason(name: str) -> None:
    """Without training, so in the full product."""
    assert clients_for(name)
    for client in set(names()) - set(clients_for(name)):
        with pytest.raises(AlgorithmError, match=r"cannot work|sends only"):
            make(f"{client}+{name}")
    for client in clients_for(name):
        pair = make(f"{client}+{name}")
        assert isinstance(pair, method(client))
        brings_the_rule = "rule" in method(name).server_half
        assert (pair.server is not None) == brings_the_rule


@federated_methods
def test_the_order_of_the_clients_changes_nothing(name: str) -> None:
    algorithm = make(name)
    chosen = domains(3)
    forwards = vector(algorithm, trained(algorithm, chosen)[0])
    backwards = vector(algorithm, trained(algorithm, chosen[::-1])[0])
    if len(forwards) > len(initial(spec_for(algorithm)).vector):  # a model a client, in the order of the clients
        backwards = torch.cat(backwards.chunk(len(chosen))[::-1])
    torch.testing.assert_close(forwards, backwards, rtol=0, atol=2e-6)


@methods
def test_two_workers_give_the_same_bits_as_one(name: str) -> None:
    algorithm = make(name)
    one, two = (hash_states(algorithm.models(trained(algorithm, domains(3), workers=workers)[0])) for workers in (1, 2))
    assert one == two


@methods
def test_messages_over_flowers_grid_give_the_same_bits(name: str) -> None:
    """As in a simulation and in a deployment; what Flower's own processes add is tested with fewer methods."""
    pytest.importorskip("flwr")
    from tests.federation.engines.flower.in_process import over_grid

    algorithm = make(name)
    local = trained(algorithm, domains(3))[0]
    fed, _ = over_grid(name, algorithm, domains(3), travelling=False)
    state = algorithm.start(initial(spec_for(algorithm)).state())
    with one_thread():
        for number in (1, 2, 3):
            fed.begin(number, range(fed.clients))
            state = algorithm.round(fed, state)
    assert fed.events == []
    assert hash_states(algorithm.models(state)) == hash_states(algorithm.models(local))


@training_methods
def test_a_run_that_stops_and_resumes_ends_in_the_same_bits(name: str, tmp_path: Any) -> None:
    problem = task(1 + max(2, fewest_clients(name)))
    plan = make_plan(problem, algorithms=[name], held_out=["c"], seeds=1, rounds=5)
    job = Job(name, "c", 0)
    whole = run_job(plan, problem, job, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.round == 4:
            raise Stop

    with pytest.raises(Stop):
        run_job(plan, problem, job, tmp_path / "parts", checkpoint_every=2, watch=stop)
    resumed = run_job(plan, problem, job, tmp_path / "parts", checkpoint_every=2)
    for key in ("model_sha256", "local_steps", "bytes_up", "bytes_down", "rounds"):
        assert resumed[key] == whole[key], key


@methods
def test_only_what_is_declared_leaves_a_client_and_its_bytes_are_counted(name: str) -> None:
    algorithm = make(name)
    spec = spec_for(algorithm)
    seen: list[tuple[str, list[dict[str, Any]]]] = []
    algorithm.rounds = 2  # a method with stages shows both
    with federation(algorithm, domains(2), spec) as fed:
        spy = Spy(fed, lambda phase, shared, replies: seen.append((phase, replies)))
        state = algorithm.start(initial(spec).state())
        for number in (1, 2):
            fed.begin(number, range(fed.clients))
            state = algorithm.round(spy, state)
        counted = dict(fed.traffic.bytes_up)
    assert list(dict.fromkeys(phase for phase, _ in seen)) == list(algorithm.phases)
    layout = initial(spec).layout
    declared = phases_of(type(algorithm))
    expected: dict[str, int] = {}
    for phase, replies in seen:
        for values in replies:
            for value_name, value in values.items():
                sizes = declared[phase][value_name].sizes(layout)
                if isinstance(value, Tensor):
                    assert tuple(value.shape) == tuple(
                        known if known is not None else actual for known, actual in zip(sizes, value.shape, strict=True)
                    )
                else:
                    assert sizes == ()
                expected[phase] = expected.get(phase, 0) + (value.nbytes if isinstance(value, Tensor) else SCALAR_BYTES)
    assert counted == expected


@federated_methods
def test_it_survives_a_client_that_fails_and_one_that_replies_with_nan(name: str) -> None:
    algorithm = make(name)
    if not algorithm.trains:
        pytest.skip("reads labels alone, so no row can break it")
    good = domains(2)
    poisoned = Domain("poisoned", torch.full_like(good[0].x, float("nan")), good[0].y)
    broken = Domain("broken", good[0].x[:, :2].clone(), good[0].y)
    spec = spec_for(algorithm)
    algorithm.rounds = 2
    with federation(algorithm, [good[0], poisoned, broken, good[1]], spec) as fed:
        state = algorithm.start(initial(spec).state())
        for number in (1, 2):
            fed.begin(number, range(4))
            state = algorithm.round(fed, state)
        dropped = {(e.round, e.client) for e in fed.events}
        assert dropped == {(1, 1), (1, 2), (2, 1), (2, 2)}
        assert 1 not in fed.states
        assert 2 not in fed.states
    assert bool(torch.isfinite(vector(algorithm, state)).all())
    assert not torch.equal(vector(algorithm, state)[:10], initial(spec).vector[:10])
