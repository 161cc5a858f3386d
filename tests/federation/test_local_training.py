"""The loop of local training around the hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, build
from farfield.federation import Sends, adds_to, phases_of
from tests.toy import SPEC, domains, federation, initial, sent


class Peeking(FedAvg):
    """A method that passes over its batches before training, as one that estimates a Fisher matrix would."""

    def before_training(self, client: Any, model: Any, **shared: Any) -> Any:
        seen = torch.stack([model(batch.x).mean() for batch in client.batches(8)]).mean()
        return {"seen": seen.detach().reshape(1)}

    @adds_to("train", seen=Sends(1, "mean output before training"))
    def after_training(self, client: Any, model: Any, local: Any) -> Any:
        return {"seen": local.seen}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_mode_of_the_model_does_not_depend_on_which_client_ran_before(workers: int) -> None:
    spec = SPEC.model_copy(update={"dropout": 0.5})
    algorithm = Peeking(FedAvg.Params(batch_size=8))
    alone = []
    for number in range(3):
        with federation(algorithm, domains(3), spec) as fed:
            fed.begin(1, [number])
            alone += [fed.map(algorithm.train, initial(spec).state()).stack("seen")]
    with federation(algorithm, domains(3), spec, workers=workers) as fed:
        fed.begin(1, range(3))
        fed.map_over(range(3), algorithm.evaluate, initial(spec).state())
        together = fed.map(algorithm.train, initial(spec).state()).stack("seen")
    assert torch.equal(together, torch.cat(alone))


def test_batches_that_are_drawn_before_the_loop_are_no_local_steps() -> None:
    peeking, plain = Peeking(FedAvg.Params(batch_size=8)), build("fedavg", {"batch_size": 8})
    found = []
    for algorithm in (peeking, plain):
        with federation(algorithm, domains(2)) as fed:
            fed.begin(1, range(2))
            replies = fed.map(algorithm.train, initial().state())
            found.append((replies.steps.tolist(), fed.traffic.local_steps, [r.values["loss"] for r in replies]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("shared", "prepared", "message"),
    [
        ({"start": 1.0}, {}, "'start' cannot name a shared or prepared value"),
        ({}, {"parameters": torch.zeros(1)}, "'parameters' cannot name a shared or prepared value"),
        ({"target": 1.0}, {"target": torch.zeros(1)}, "before_training returns 'target', which the server shares"),
    ],
)
def test_names_that_would_hide_one_another_are_refused(shared: Any, prepared: Any, message: str) -> None:
    class Named(FedAvg):
        def before_training(self, client: Any, model: Any, **shared: Any) -> Any:
            return prepared

        def loss(self, model: Any, batch: Any, **shared: Any) -> Any:
            return FedAvg.loss(self, model, batch)

    algorithm = Named(FedAvg.Params(batch_size=8))
    with federation(algorithm, domains(1)) as fed:
        fed.begin(1, [0])
        with pytest.raises(Exception, match="clients replied"):
            fed.map(algorithm.train, initial().state(), **shared)
        assert message in fed.events[0].message


def test_a_hook_declares_only_what_it_adds() -> None:
    assert list(phases_of(Peeking)["train"]) == ["update", "loss", "buffers", "seen"]
    with federation(Peeking(FedAvg.Params(batch_size=8)), domains(1)) as fed:
        fed.begin(1, [0])
        (values,) = sent(fed, Peeking(FedAvg.Params(batch_size=8)).train, initial().state())
    assert set(values) == {"update", "loss", "seen"}


def test_what_is_declared_already_cannot_be_added_again() -> None:
    class Twice(FedAvg):
        @adds_to("train", loss=Sends((), "again"))
        def after_training(self, client: Any, model: Any, local: Any) -> Any:
            return {}

    with pytest.raises(TypeError, match="adds 'loss' to 'train', which declares it already"):
        phases_of(Twice)


def test_a_hook_cannot_add_to_a_phase_that_is_not_there() -> None:
    class Lost(FedAvg):
        @adds_to("trian", extra=Sends((), "one more"))
        def after_training(self, client: Any, model: Any, local: Any) -> Any:
            return {}

    with pytest.raises(TypeError, match="adds to the phase 'trian', and Lost has none"):
        phases_of(Lost)
