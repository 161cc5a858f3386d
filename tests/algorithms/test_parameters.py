"""Parameters carry the range in which a search would look, and say when they have no effect."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from farfield.algorithms import FedAvg, build, method, names
from farfield.algorithms.parameters import (
    SearchRange,
    choices,
    fixed,
    linear_range,
    log_range,
    parameter,
    search_range,
)


class Params(BaseModel):
    rate: float = parameter(0.1, "a rate", log_range(1e-3, 1.0), gt=0)
    share: float = parameter(0.5, "a share", linear_range(0.0, 0.9), ge=0)
    width: int = parameter(3, "a width", choices(1, 3, 5))
    rounds: int = parameter(3, "what is asked", fixed())
    kind: Literal["a", "b"] = parameter("a", "a kind")
    maybe: Literal["x", "y"] | None = parameter(None, "a kind, or none")
    switch: bool = parameter(False, "a switch")
    nothing: float = Field(1.0, description="without a range")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("rate", "0.001 to 1, log"),
        ("share", "0 to 0.9"),
        ("width", "1, 3, 5"),
        ("rounds", "–"),
        ("kind", "a, b"),
        ("maybe", "x, y"),
        ("switch", "False, True"),
    ],
)
def test_a_range_is_read_from_the_field_or_from_its_type(name: str, shown: str) -> None:
    assert str(search_range(Params.model_fields[name])) == shown


def test_a_field_without_a_range_has_none() -> None:
    assert search_range(Params.model_fields["nothing"]) is None
    assert search_range(Params.model_fields["rate"]) == SearchRange("log", 1e-3, 1.0)


@pytest.mark.parametrize(
    ("make", "low", "high"), [(log_range, 0.0, 1.0), (log_range, 2.0, 1.0), (linear_range, 1.0, 1.0)]
)
def test_an_impossible_range_is_refused(make: object, low: float, high: float) -> None:
    with pytest.raises(ValueError, match="scale goes from"):
        make(low, high)  # type: ignore[operator]


@pytest.mark.parametrize("name", names())
def test_every_parameter_of_every_method_says_where_to_search(name: str) -> None:
    missing = [key for key, field in method(name).Params.model_fields.items() if search_range(field) is None]
    assert missing == []


@pytest.mark.parametrize("name", names())
def test_a_range_lies_within_the_parameters_limits(name: str) -> None:
    for key, field in method(name).Params.model_fields.items():
        found = search_range(field)
        assert found is not None
        ends = {"choices": found.choices, "fixed": ()}.get(found.scale, (found.low, found.high))
        for value in ends:
            if field.annotation is int:
                assert float(value).is_integer()
            method(name).Params.__pydantic_validator__.validate_assignment(
                method(name).Params.model_construct(**build(name).params.model_dump()), key, value
            )


@pytest.mark.parametrize(
    ("name", "settings", "idle"),
    [
        ("fedavg", {"local_steps": 3}, {"local_epochs", "schedule"}),
        ("fedavg", {"schedule": (1, 2)}, {"local_epochs"}),
        ("fedavg", {"optimizer": "adam"}, {"momentum"}),
        ("fedadam", {}, set()),
        ("fedyogi", {}, {"server_bias_correction"}),
        ("fedsgd", {}, {"momentum", "weight_decay", "optimizer"}),
        ("fediir", {"gamma": 0.0}, {"upsilon", "half", "gradient_average"}),
        ("fedcir-reg", {}, {"sigma_floor"}),
        ("erm", {}, {"weighting"}),
        ("fedilc-inter-geo", {"server_optimizer": "adam"}, {"weighting", "momentum", "weight_decay", "optimizer"}),
    ],
)
def test_settings_without_effect_are_named(name: str, settings: dict[str, object], idle: set[str]) -> None:
    params = build(name, settings).params
    found = params.idle()
    server = {"server_beta2", "server_epsilon", "server_bias_correction"} if params.server_optimizer == "sgd" else set()
    without_effect = {"bound_factor", "noise", "delta"}  # without a bound by the median, and without privacy
    assert set(found) == idle | server | without_effect
    assert all(found.values()), "each has a reason"


def test_a_rule_says_whether_the_clients_weights_count() -> None:
    assert "weighting" in build("fedavg+fedilc-geometric").params.idle()
    assert "weighting" not in build("fedilc-inter-geo+fedomg").params.idle()


def test_hooks_that_would_silently_do_nothing_are_refused() -> None:
    with pytest.raises(TypeError, match="has 'penalty' and no 'adjust'"):
        type("Half", (FedAvg,), {"penalty": lambda self, local: local.parameters.sum(-1)})
    with pytest.raises(TypeError, match="has 'adjust' and no 'penalty'"):
        type("Half", (FedAvg,), {"adjust": lambda self, gradient, local: None})
    with pytest.raises(TypeError, match="'local_gradient' of FedIIR never calls it"):
        type("Deaf", (method("fediir"),), {"loss": lambda self, model, batch, target: 0})
    type("Heard", (method("fediir"),), {"loss": FedAvg.loss, "local_gradient": FedAvg.local_gradient})


def test_a_class_with_step_hooks_of_its_own_says_itself_whether_they_stack() -> None:
    assert all(method(name).stackable for name in names() if name != "prior")

    class Silent(FedAvg):
        def loss(self, model: Any, batch: Any, **shared: Any) -> Any:
            return super().loss(model, batch, **shared).sum()

    class Saying(Silent):
        stackable = True

        def loss(self, model: Any, batch: Any, **shared: Any) -> Any:
            return super().loss(model, batch, **shared)

    class Other(Saying):
        name = "other"

    assert [each.stackable for each in (Silent, Saying, Other)] == [False, True, True]


def test_a_method_does_not_inherit_fedavgs_differences_by_accident() -> None:
    class Silent(FedAvg):
        pass

    class Child(method("fedcir")):  # type: ignore[misc]
        pass

    assert FedAvg.differences != ()
    assert Silent.differences == ()
    assert Child.differences == method("fedcir").differences
