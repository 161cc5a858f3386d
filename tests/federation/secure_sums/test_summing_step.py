"""A method with secure sums: the same means as without, no single value at the server, and refusals before it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farfield.algorithms import AlgorithmError, FedAvg, Misfit, build
from farfield.federation import SCALAR, Sends, phase
from farfield.federation.federation import NobodyReplied, OnlyInSum, QuorumMissed
from farfield.federation.phase import declared_phases
from farfield.federation.secure_sums.quantise import FixedPoint
from farfield.federation.secure_sums.summing_step import NotInSum
from tests.toy import SPEC, domains, federation, initial, lose, sent

SETTINGS = {"lr": 0.1, "batch_size": 8}
METHODS = ("fedavg", "fedprox", "scaffold", "fedsgd", "fediir", "fedavgm", "fedadam", "fedyogi", "fedprox+fedadam")


def rounds(algorithm: FedAvg, count: int = 3, spec: Any = SPEC, **options: Any) -> Any:
    with federation(algorithm, domains(4), spec, **options) as fed:
        state = algorithm.start(initial(spec).state())
        for number in range(1, count + 1):
            fed.begin(number, range(4))
            state = algorithm.round(fed, state)
        assert fed.events == []
    return state


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("name", METHODS)
def test_a_round_is_the_plain_one_up_to_the_stated_step(name: str, weighting: str) -> None:
    settings = {**SETTINGS, "weighting": weighting}
    # One round, so that what is compared is the sum and not what training makes of it; server Adam divides by tiny
    # numbers, so there a step of 1.5e-8 is 1.5e-5 of its epsilon.
    plain, secure = (rounds(build(name, {**settings, **more}), 1) for more in ({}, {"secure_sums": True}))
    apart = (plain.model.parameters - secure.model.parameters).abs().max()
    assert float(apart) <= 4 * FixedPoint().step + 2e-7
    assert secure.diagnostics["loss"] == pytest.approx(plain.diagnostics["loss"], abs=1e-6)
    assert not any(diagnostic.startswith("cosine") for diagnostic in secure.diagnostics)
    assert not torch.equal(secure.model.parameters, initial().vector)


def test_the_sum_is_that_of_the_clients_replies_computed_apart() -> None:
    """Σ n_k Δ_k / Σ n_k from the updates of clients that send them singly, in whole numbers of the step."""
    plain, secure = build("fedavg", SETTINGS), build("fedavg", {**SETTINGS, "secure_sums": True})
    model = initial().state()
    with federation(plain, domains(4)) as fed:
        fed.begin(1, range(4))
        replies = fed.map(plain.train, model)
        updates, samples = [r.values["update"].double() for r in replies], [r.samples for r in replies]
    with federation(secure, domains(4)) as fed:
        fed.begin(1, range(4))
        summed = fed.map(secure.train, model)
    step = 2.0**-26
    for place in range(5):
        whole = sum(round(float(update[place]) * n / step) for update, n in zip(updates, samples, strict=True))
        assert float(summed.sum("update")[place]) == whole * step
    assert float(summed.sum("update.weight")) == sum(samples)
    expected = sum(u * n for u, n in zip(updates, samples, strict=True)) / sum(samples)
    assert (summed.mean("update") - expected).abs().max() <= 4 * step / 2 / sum(samples) + 1e-15


def test_no_value_of_one_client_is_at_the_server() -> None:
    algorithm = build("scaffold", {**SETTINGS, "secure_sums": True})
    with federation(algorithm, domains(3)) as fed:
        fed.begin(1, range(3))
        state = algorithm.start(initial().state())
        replies = fed.map(algorithm.train, state.model, control=state.control)
    for name in ("update", "loss", "control_change", "update.weight"):
        assert replies.has(name)
        with pytest.raises(OnlyInSum):
            replies[0].values[name]
        with pytest.raises(OnlyInSum):
            replies.stack(name)
        with pytest.raises(OnlyInSum):
            replies.of([0]).sum(name)


@pytest.mark.parametrize("name", ["fedavg", "fediir", "scaffold"])
def test_workers_and_the_order_of_replies_change_no_bit(name: str) -> None:
    settings = {**SETTINGS, "secure_sums": True}
    alone, shared = rounds(build(name, settings)), rounds(build(name, settings), workers=2)
    assert torch.equal(alone.model.parameters, shared.model.parameters)
    backwards = build(name, settings)
    with federation(backwards, domains(4)) as fed:
        reach = fed._outcomes
        fed._outcomes = lambda *given: iter(list(reach(*given))[::-1])  # type: ignore[method-assign]
        state = backwards.start(initial().state())
        for number in range(1, 4):
            fed.begin(number, range(4))
            state = backwards.round(fed, state)
    assert torch.equal(alone.model.parameters, state.model.parameters)


def test_running_statistics_are_averaged_by_samples() -> None:
    spec = SPEC.model_copy(
        update={"featurizer": "convnet", "input_shape": (1, 8, 8), "hidden": (2,), "norm": "average"}
    )
    made = [type(d)(d.name, d.x.repeat(1, 16).view(-1, 1, 8, 8), d.y) for d in domains(3)]
    after = []
    for settings in (SETTINGS, {**SETTINGS, "secure_sums": True}):
        algorithm = build("fedavg", settings)
        with federation(algorithm, made, spec) as fed:
            fed.begin(1, range(3))
            after.append(algorithm.round(fed, algorithm.start(initial(spec).state())).model.buffers)
    assert len(after[0])
    torch.testing.assert_close(after[0], after[1], rtol=0, atol=2e-7)


def test_a_value_beyond_the_range_is_the_clients_problem() -> None:
    algorithm = build("fedavg", {**SETTINGS, "secure_sums": True, "secure_range": 2.0**-20})
    with federation(algorithm, domains(3)) as fed:
        fed.begin(1, range(3))
        with pytest.raises(QuorumMissed, match="0 clients replied"):
            algorithm.round(fed, algorithm.start(initial().state()))
        assert len(fed.events) == 3
        assert all("OutOfRange" in event.message and "secure_range" in event.message for event in fed.events)


def test_a_sum_of_fewer_than_three_is_refused() -> None:
    algorithm = build("fedavg", {**SETTINGS, "secure_sums": True})
    with federation(algorithm, domains(4), quorum=0.25) as fed:
        fed.begin(1, range(4))
        lose(fed, {"train": {0, 2}, "evaluate": {1, 3}})
        with pytest.raises(QuorumMissed, match="2 clients replied, and a secure sum is over 3 to 2047"):
            algorithm.round(fed, algorithm.start(initial().state()))
        with pytest.raises(NobodyReplied, match="2 clients replied"):
            fed.map_over(range(4), algorithm.evaluate, initial().state())
    with pytest.raises(Misfit, match="with secure_sums needs 3 to 2047 clients in a cohort, not 2"):
        algorithm.check(SPEC, "classification", 2)
    build("fedavg", {"secure_sums": True, "secure_least": 4}).check(SPEC, "classification", 4)
    with pytest.raises(Misfit, match="needs 4 to 2047"):
        build("fedavg", {"secure_sums": True, "secure_least": 4}).check(SPEC, "classification", 3)
    with pytest.raises(AlgorithmError, match="secure_least"):
        build("fedavg", {"secure_sums": True, "secure_least": 2})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fedomg", "matches the clients' updates with one another"),
        ("fedavg+fedomg", "fedomg matches the clients' updates with one another"),
        ("fedcir", "trains its generator on each client's head"),
        ("fedcir-align", "trains its generator on each client's head"),
        ("fedloe-irm", "mixes the clients' heads by single predictions"),
        ("fedilc-inter-geo", "compares the clients' gradients"),
        ("local-only", "keeps one model per client"),
        ("erm", "pools the rows"),
    ],
)
def test_what_needs_single_updates_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(Misfit, match=why):
        build(name, {"secure_sums": True})
    build(name, {"secure_sums": False})


def test_a_method_of_ones_own_is_refused_until_it_says_that_sums_suffice() -> None:
    class Halved(FedAvg):
        name = "halved"

        def rule(self, updates: Any, weights: Any, reference: Any) -> Any:
            return reference / 2

    with pytest.raises(Misfit, match="does not say that its server half needs sums alone"):
        Halved(Halved.Params(secure_sums=True))

    class Told(FedAvg):
        name = "told"

        @phase(secret=Sends(SCALAR, "what the server reads one by one"))
        def tell(self, client: Any, model: Any) -> Any:
            return {"secret": 1.0}

    with pytest.raises(NotInSum, match="'secret' is needed one by one"):
        declared_phases(Told(Told.Params(secure_sums=True)))


def test_everything_that_leaves_is_declared_as_seen_in_sum() -> None:
    algorithm = build("fediir", {**SETTINGS, "secure_sums": True})
    for name in ("head_gradient", "train", "evaluate"):
        assert {sends.server_sees for sends in declared_phases(algorithm)[name].values()} == {"sum"}
    with federation(algorithm, domains(3)) as fed:
        fed.begin(1, range(3))
        (first, *_) = sent(fed, algorithm.head_gradient, initial().state())
    assert {value.dtype for value in first.values()} == {torch.int64}


def test_the_settings_of_a_run_without_secure_sums_are_as_before() -> None:
    params = build("fedavg", {"secure_sums": False}).params
    assert [params.secure_sums, params.secure_least, params.secure_range] == [None, None, None]
    with pytest.raises(AlgorithmError, match="power of two"):
        build("fedavg", {"secure_range": 3.0})
    assert "secure_sums is not set" in build("fedavg", {"secure_least": 4}).params.idle()["secure_least"]
