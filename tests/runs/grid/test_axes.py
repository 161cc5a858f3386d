"""What can be swept, and what is refused before any work."""

from __future__ import annotations

from typing import Any

import pytest

from farfield.errors import UserError
from farfield.runs.grid.axes import expand, point_name, points, read_axes
from farfield.runs.variants import read_variants

METHODS = read_variants(["fedavg", "fedprox", "fediir", {"mine": "fediir:upsilon=0.5"}])


def test_a_parameter_makes_variants_and_methods_without_it_stay_once() -> None:
    axes = read_axes(["gamma=0,1e-4,1e-3"], METHODS, {})
    found = [(of.variant.label, of.base, of.values) for of in expand(METHODS, axes)]
    assert found == [
        ("fedavg", "fedavg", {}),
        ("fedprox", "fedprox", {}),
        ("fediir:gamma=0", "fediir", {"gamma": 0}),
        ("fediir:gamma=0.0001", "fediir", {"gamma": 1e-4}),
        ("fediir:gamma=0.001", "fediir", {"gamma": 1e-3}),
        ("mine gamma=0", "mine", {"gamma": 0}),
        ("mine gamma=0.0001", "mine", {"gamma": 1e-4}),
        ("mine gamma=0.001", "mine", {"gamma": 1e-3}),
    ]
    assert points(axes) == [{}]


def test_two_things_at_once_are_every_pair_of_values() -> None:
    axes = read_axes(["clients=3,10", "cohort=1,2"], METHODS, {})
    assert [point_name(at) for at in points(axes)] == [
        "clients=3, cohort=1",
        "clients=3, cohort=2",
        "clients=10, cohort=1",
        "clients=10, cohort=2",
    ]
    both = read_axes({"lr": [0.1, 0.2], "mu": [0, 1]}, METHODS[1:2], {})
    assert [of.values for of in expand(METHODS[1:2], both)] == [
        {"lr": 0.1, "mu": 0},
        {"lr": 0.1, "mu": 1},
        {"lr": 0.2, "mu": 0},
        {"lr": 0.2, "mu": 1},
    ]


def test_an_owner_restricts_a_parameter_to_one_method() -> None:
    found = expand(METHODS[:2], read_axes(["fedprox.lr=0.1,0.2"], METHODS[:2], {}))
    assert [of.variant.label for of in found] == ["fedavg", "fedprox:lr=0.1", "fedprox:lr=0.2"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["gama=1,2"], "no method here has a parameter 'gama' to sweep.*did you mean 'gamma'"),
        (["kappa=0.1,0.5"], "no method here has a parameter 'kappa'"),
        (["client=3,5"], "did you mean 'clients'"),
        (["gamma="], "--sweep gamma= has no values"),
        (["gamma"], "--sweep takes name=value,value,…, not 'gamma'"),
        (["gamma=1,2,1"], "--sweep gamma has the value 1 twice"),
        (["clients=3", "clients=5"], "--sweep clients is given twice"),
        (["upsilon=0.5,0.9", "model.hidden=3,4"], "the model is the same in all runs"),
        (["clients=3,4", "mu=0,1", "lr=0.1,0.2"], "3 things are swept at once"),
        ([], "there is nothing to sweep"),
        (["fedomg.kappa=1,2"], "'fedomg' is not among the methods here"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_one_sentence(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_axes(given, METHODS, {})


def test_what_is_swept_cannot_be_set_as_well() -> None:
    with pytest.raises(UserError, match="clients is swept and set to 5 as well"):
        read_axes(["clients=3,10"], METHODS, {"clients": 5})
    with pytest.raises(UserError, match="mu is swept, and fedprox:mu=1 sets it itself"):
        read_axes(["mu=0,1"], read_variants(["fedavg", "fedprox:mu=1"]), {})


def test_a_name_that_is_an_option_and_a_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farfield.runs.grid.axes.OPTIONS", ("clients", "mu"))
    with pytest.raises(UserError, match=r"'mu' is an option .* and a parameter of fedprox; .* as fedprox\.mu"):
        read_axes(["mu=0,1"], METHODS, {})
