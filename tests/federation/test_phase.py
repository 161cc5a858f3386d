"""What a phase declares, and how declarations are inherited."""

from __future__ import annotations

import pytest

from farfield.algorithms import FedAvg
from farfield.federation import SCALAR, Client, Free, Sends, phase, phases_of
from farfield.federation.phase import Named, declared_sends
from farfield.models import Model, ModelSpec, build_model
from tests.toy import domains, federation, initial


class Method(FedAvg):
    @phase(
        scores=Sends((Free("tuning rows"), "outputs"), "predictions"),
        head=Sends("head", "the head"),
        pair=Sends((2, "features"), "two of them"),
        one=Sends(SCALAR, "a number"),
    )
    def extra(self, client: Client, model: Model) -> Named:
        return {}

    def train(self, client: Client, model: Model, **shared: object) -> Named:
        return super().train(client, model, **shared)

    def helper(self) -> int:
        return 1


def test_sizes_by_name_are_the_models_sizes() -> None:
    layout = build_model(ModelSpec(input_shape=(4,), outputs=3, hidden=(6,), norm="average"), seed=0).layout
    sends = phases_of(Method)["extra"]
    assert sends["scores"].sizes(layout) == (None, 3)
    assert sends["head"].sizes(layout) == (6 * 3 + 3,)
    assert sends["pair"].sizes(layout) == (2, 6)
    assert sends["one"].sizes(layout) == ()
    assert Sends("parameters", "").sizes(layout) == (4 * 6 + 6 + 12 + 21,)
    assert Sends("buffers", "").sizes(layout) == (12,)


def test_an_overriding_method_keeps_what_its_parent_declared() -> None:
    assert declared_sends(Method.train) == declared_sends(FedAvg.train)
    assert set(declared_sends(Method.train)) == {"update", "loss", "buffers"}


def test_all_phases_of_a_class_are_found_and_nothing_else() -> None:
    assert set(phases_of(Method)) == {"train", "evaluate", "extra"}
    assert set(phases_of(FedAvg)) == {"train", "evaluate"}


def test_a_method_that_is_not_a_phase_never_reaches_a_client() -> None:
    algorithm = Method()
    with federation(algorithm, domains(2)) as fed:
        fed.begin(1, [0, 1])
        with pytest.raises(TypeError, match=r"'helper' is not a phase; mark it with @phase"):
            fed.map(algorithm.helper, initial().state())  # type: ignore[arg-type]
        assert fed.events == []
