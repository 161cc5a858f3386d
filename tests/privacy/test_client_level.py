"""Replies in which a client's whole contribution is protected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats

from farfield.algorithms import AlgorithmError, build
from farfield.federation import SCALAR, Sends
from farfield.federation.phase import declared_phases
from farfield.privacy.client_level import ClipAndNoise, shortened
from farfield.privacy.release import Release, release_of, releases_of, uploading_phases
from tests.battery.methods import make
from tests.battery.test_battery import Spy, trained
from tests.toy import domains, federation, initial, population

PRIVATE = {"privacy": "client", "clip": 1.0, "noise": 2.0, "weighting": "uniform"}
LIMIT = {**PRIVATE, "clip": 1e9, "noise": 0.0}
METHODS = ("fedavg", "fedprox", "fedsgd", "fediir", "fedavg+fedomg", "fediir+fedadam")
SENDS = {
    "update": Sends("parameters", "the update", is_update=True),
    "gradient": Sends("head", "a gradient", privacy="noise"),
    "count": Sends(SCALAR, "always one", privacy="public"),
    "loss": Sends(SCALAR, "the loss"),
}


def client() -> Any:
    return population(domains(1)).client(0, seed=0, round=1, phase="train", state={})


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_and_without_a_limit_private_training_is_the_plain_one(name: str) -> None:
    plain, _ = trained(make(name, weighting="uniform"), domains(2))
    private, _ = trained(make(name, **LIMIT), domains(2))
    assert torch.allclose(private.model.parameters, plain.model.parameters, atol=1e-6)


def test_a_reply_is_cut_as_one_vector_and_what_has_no_noise_stays_at_the_client() -> None:
    values = {"update": torch.tensor([3.0, 0.0]), "gradient": torch.tensor([0.0, 4.0]), "count": 1, "loss": 0.3}
    sent = ClipAndNoise(clip=1.0, noise=0.0).apply(values, SENDS, client())
    assert set(sent) == {"update", "gradient", "count"}
    assert torch.allclose(torch.as_tensor(sent["update"]), torch.tensor([0.6, 0.0]), atol=1e-5)
    assert torch.allclose(torch.as_tensor(sent["gradient"]), torch.tensor([0.0, 0.8]), atol=1e-5)
    assert sent["count"] == 1


def test_noise_has_the_promised_spread_in_every_entry() -> None:
    values = {"update": torch.zeros(9000), "gradient": torch.zeros(3000), "count": 1, "loss": 0.3}
    sent = ClipAndNoise(clip=0.25, noise=6.0).apply(values, SENDS, client())
    draws = torch.cat([torch.as_tensor(sent["update"]), torch.as_tensor(sent["gradient"])]).double().numpy()
    assert stats.kstest(draws / 1.5, "norm").pvalue > 1e-6


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e30])
def test_a_clients_whole_contribution_is_at_most_the_limit(scale: float) -> None:
    vector = scale * torch.randn(300, generator=torch.Generator().manual_seed(1))
    assert float(shortened(vector, 0.7).double().norm()) <= 0.7
    if scale >= 1.0:
        assert float(shortened(vector, 0.7).double().norm()) > 0.699


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_reply_that_is_not_finite_becomes_noise_alone(bad: float) -> None:
    """That a client diverged is something about its data, so nothing may tell of it."""
    assert not shortened(torch.tensor([bad, 1.0]), 1.0).any()
    sent = ClipAndNoise(1.0, 1.0).apply({"update": torch.tensor([bad, 1.0])}, SENDS, client())
    zero = ClipAndNoise(1.0, 1.0).apply({"update": torch.zeros(2)}, SENDS, client())
    assert torch.equal(torch.as_tensor(sent["update"]), torch.as_tensor(zero["update"]))


@pytest.mark.parametrize("name", METHODS)
def test_every_phase_that_uploads_is_noised_and_counted(name: str) -> None:
    algorithm = make(name, **PRIVATE)
    seen: dict[str, set[str]] = {}
    with federation(algorithm, domains(2)) as fed:
        Spy(fed, lambda phase, shared, replies: seen.setdefault(phase, set()).update(*replies))
        fed.begin(1, range(2))
        algorithm.round(fed, algorithm.start(initial().state()))
    allowed = {"update", "gradient", "batches"}
    assert all(names <= allowed for names in seen.values())
    assert uploading_phases(algorithm) == list(seen)
    for phase in seen:
        assert release_of(algorithm, phase, 1, 40) == Release(2.0, 1.0, 1), "no amplification: the cohort is no secret"
    assert releases_of(algorithm, 10, 40) == {Release(2.0, 1.0, 1): 10 * len(seen)}
    assert declared_phases(algorithm)["evaluate"] == {}


def test_fediir_makes_two_uploads_in_a_round() -> None:
    assert uploading_phases(make("fediir", **PRIVATE)) == ["head_gradient", "train"]
    with pytest.raises(AlgorithmError, match="gradient_average=batches sends how many batches"):
        build("fediir", {**PRIVATE, "gradient_average": "batches"})


def test_the_number_of_rows_plays_no_part_in_the_mean() -> None:
    with pytest.raises(AlgorithmError, match="set weighting=uniform"):
        build("fedavg", {**PRIVATE, "weighting": "samples"})


def test_what_is_declared_tells_of_limit_and_noise() -> None:
    declared = declared_phases(build("fedavg", PRIVATE))["train"]
    assert list(declared) == ["update"]
    assert declared["update"].meaning.endswith("at most 1 long, then with noise of 2 times that")


def test_clipping_alone_says_nothing_of_privacy() -> None:
    clipped = build("fedavg", {"clip": 1.0})
    assert "noise" not in declared_phases(clipped)["train"]["update"].meaning
    assert release_of(clipped, "train", 1, 40) is None
    assert releases_of(clipped, 5, 40) == {}
