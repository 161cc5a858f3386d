"""The chain between a phase and the wire."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farfield.algorithms import AlgorithmError, FedAvg, build
from farfield.federation import SCALAR, Sends
from farfield.federation.outgoing_updates import Clip
from farfield.federation.phase import declared_phases, phases_of
from tests.toy import domains, federation, initial, sent

SENDS = {
    "update": Sends("parameters", "the update", is_update=True),
    "loss": Sends(SCALAR, "the loss"),
    "buffers": Sends("buffers", "statistics"),
}


def test_clip_shortens_updates_to_the_limit_and_leaves_the_rest() -> None:
    values = {"update": torch.tensor([3.0, 4.0]), "loss": 9.0, "buffers": torch.tensor([30.0, 40.0])}
    clipped = Clip(2.5).apply(values, SENDS, None)  # type: ignore[arg-type]
    assert clipped["update"].tolist() == pytest.approx([1.5, 2.0], rel=1e-6)
    assert (clipped["loss"], clipped["buffers"].tolist()) == (9.0, [30.0, 40.0])
    assert values["update"].tolist() == [3.0, 4.0], "the client's own tensor stays as it was"


@pytest.mark.parametrize("seed", range(20))
def test_rounding_does_not_lead_over_the_limit(seed: int) -> None:
    update = torch.randn(500, generator=torch.Generator().manual_seed(seed))
    clipped = Clip(0.7).apply({"update": update}, SENDS, None)["update"]  # type: ignore[arg-type]
    length = float(torch.linalg.vector_norm(torch.as_tensor(clipped), dtype=torch.float64))
    assert 0.7 * (1 - 1e-6) < length <= 0.7


def test_the_server_half_reads_what_the_steps_restore() -> None:
    """A step that sends every update doubled, and halves it again at the server."""

    class Doubled:
        def declare(self, sends: Any) -> Any:
            return sends

        def apply(self, values: Any, sends: Any, client: Any) -> Any:
            return {name: 2 * v if sends[name].is_update else v for name, v in values.items()}

        def restore(self, values: Any) -> Any:
            return {**values, "update": values["update"] / 2}

    class FedDoubled(FedAvg):
        update_steps = (Doubled(),)  # type: ignore[assignment]

    plain, doubled = build("fedavg", {"batch_size": 8}), FedDoubled(FedAvg.Params(batch_size=8))
    seen = []
    for algorithm in (plain, doubled):
        with federation(algorithm, domains(2)) as fed:
            fed.begin(1, range(2))
            wire = sent(fed, algorithm.train, initial().state())
            seen.append((wire[0]["update"], fed.map(algorithm.train, initial().state()).stack("update")[0]))
    assert torch.equal(seen[1][0], 2 * seen[0][0])
    assert torch.equal(seen[1][1], seen[0][1])


@pytest.mark.parametrize("limit", [5.0, 7.0])
def test_an_update_within_the_limit_keeps_its_bits(limit: float) -> None:
    update = torch.tensor([3.0, 4.0])
    assert Clip(limit).apply({"update": update}, SENDS, None)["update"] is update  # type: ignore[arg-type]


def test_what_is_not_finite_stays_so_and_is_dropped_by_the_checks() -> None:
    update = torch.tensor([float("inf"), 0.0])
    assert not torch.isfinite(Clip(1.0).apply({"update": update}, SENDS, None)["update"]).all()  # type: ignore[arg-type]


def test_a_step_says_what_it_does_to_what_is_declared() -> None:
    plain, clipped = build("fediir"), build("fediir", {"clip": 0.5})
    assert declared_phases(plain) == phases_of(type(plain))
    train = declared_phases(clipped)["train"]
    assert train["update"].meaning == "local parameters minus the broadcast ones; at most 0.5 long"
    assert "at most" not in declared_phases(clipped)["head_gradient"]["gradient"].meaning
    assert train["loss"] == phases_of(type(plain))["train"]["loss"]


def test_the_chain_is_empty_by_default_and_clip_joins_it_by_a_setting() -> None:
    assert build("fedavg").update_steps == ()
    assert build("fedavg", {"clip": 0.5}).update_steps == (Clip(0.5),)
    with pytest.raises(AlgorithmError, match=r"clip = 0\.0"):
        build("fedavg", {"clip": 0.0})


def test_scaffold_refuses_what_would_part_its_control_variates() -> None:
    with pytest.raises(AlgorithmError, match="omit clip"):
        build("scaffold", {"clip": 0.5})


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "fediir", "fedilc-fishr"])
def test_every_update_that_leaves_a_client_is_within_the_limit(name: str) -> None:
    limit = 1e-3
    algorithm = build(name, {"clip": limit, "batch_size": 8})
    shared = {
        "train": {"fediir": {"target": torch.zeros(21)}},
        "variance_gradient": {"fedilc-fishr": {"mean_variance": torch.zeros(21)}},
    }
    with federation(algorithm, domains(2)) as fed:
        fed.begin(1, range(2))
        for phase in algorithm.phases:
            given = shared.get(phase, {}).get(name, {})
            for values in sent(fed, getattr(algorithm, phase), initial().state(), **given):
                declared = phases_of(type(algorithm))[phase]
                lengths = [float(v.norm()) for n, v in values.items() if declared[n].is_update]
                assert all(length <= limit * (1 + 1e-6) for length in lengths)
        after = algorithm.round(fed, algorithm.start(initial().state()))
    assert bool(torch.isfinite(after.model.parameters).all())


def test_clipping_shortens_the_round() -> None:
    steps = []
    for settings in ({}, {"clip": 1e-2}):
        algorithm = build("fedavg", {"batch_size": 8, **settings})
        with federation(algorithm, domains(2)) as fed:
            fed.begin(1, range(2))
            after = algorithm.round(fed, algorithm.start(initial().state()))
        steps.append(float((after.model.parameters - initial().vector).norm()))
    assert steps[0] > 0.05
    assert steps[1] <= 1e-2 * (1 + 1e-6)
