"""What is tuned, and what is refused before any work."""

from __future__ import annotations

from typing import Any

import pytest

from farfield.errors import UserError
from farfield.runs.plan import Plan, make_plan
from farfield.runs.tuning.request import read_request, search_space
from tests.toy import task


def tuned_parameters(algorithms: Any, only: Any = None, **options: Any) -> dict[str, tuple[str, ...]]:
    plan = make_plan(task(3), algorithms=algorithms, tuning=read_request(4, None, only), **options)
    assert plan.tuning is not None
    return plan.tuning.parameters


def test_every_method_tunes_the_step_size_and_its_own_continuous_parameters() -> None:
    found = tuned_parameters(["fedavg", "fedprox", "fediir", "fedomg", "fedadam", "erm", "fedilc-geometric"])
    assert found == {
        "fedavg": ("lr",),
        "fedprox": ("lr", "mu"),
        "fediir": ("lr", "gamma"),
        "fedomg": ("lr", "kappa"),
        "fedadam": ("lr", "server_lr", "server_momentum"),
        "erm": ("lr",),
        # Its lr is a factor on one gradient, declared as fixed; the server takes the steps.
        "fedilc-geometric": ("server_lr", "server_momentum", "server_epsilon"),
    }


def test_both_halves_of_a_composition_are_tuned() -> None:
    assert tuned_parameters(["fedprox+fedomg"]) == {"fedprox+fedomg": ("lr", "mu", "kappa")}


def test_what_a_user_sets_is_not_tuned() -> None:
    found = tuned_parameters(["fedavg", "fedprox:mu=0.5", "fediir"], settings={"fediir.lr": 0.3})
    assert found == {"fedavg": ("lr",), "fedprox:mu=0.5": ("lr",), "fediir": ("gamma",)}


def test_named_parameters_are_tuned_even_where_a_value_is_set_for_all() -> None:
    found = tuned_parameters(["fedavg", "fedprox"], ["mu", "momentum"], settings={"mu": 0.5})
    assert found == {"fedavg": ("momentum",), "fedprox": ("momentum", "mu")}


def test_idle_parameters_are_not_tuned() -> None:
    space = search_space("fedavg", make_plan(task(3), algorithms="fedavg").settings["fedavg"], ["all"])
    assert "server_beta2" not in space  # of server adam and yogi, and the server is sgd
    assert {"lr", "momentum", "weight_decay", "optimizer", "server_lr"} <= set(space)
    assert {"batch_size", "local_epochs", "local_steps", "schedule"}.isdisjoint(space)  # they decide the steps


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((0,), "tune = 0: give the number of trials per method, 1 or more"),
        ((-3,), "tune = -3: give the number of trials"),
        ((True,), "tune = True"),
        ((None, "source-validation"), "--tune-by says how to tune; give the number of trials as well"),
        ((4, "oracle"), "tuning by 'oracle' would look at the held-out domain"),
        ((4, "source-validaton"), "did you mean 'source-validation'"),
        ((4, None, []), "the list of parameters to tune is empty"),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_one_sentence(asked: tuple[Any, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_request(*asked)


@pytest.mark.parametrize(
    ("only", "said"),
    [
        (["muu"], "no method here has a parameter 'muu' to tune; did you mean 'mu'"),
        (["batch_size"], "batch_size decides how many local steps a trial makes"),
        (["clip"], "the parameter 'clip' declares no range"),
    ],
)
def test_a_parameter_that_cannot_be_tuned_is_refused_in_one_sentence(only: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        tuned_parameters(["fedavg", "fedprox"], only)


def test_nothing_left_to_tune_is_refused() -> None:
    with pytest.raises(UserError, match="there is nothing to tune"):
        tuned_parameters(["fedavg"], settings={"lr": 0.1})


def notes(plan: Plan) -> list[str]:
    return [note for note in plan.notes if "tuned" in note]


def test_a_bench_says_which_methods_are_judged_at_their_defaults() -> None:
    plan = make_plan(task(3), algorithms=["fedavg", "fedprox", "fedomg:kappa=0.2"])
    assert notes(plan) == [
        "never tuned: fedprox (mu=0.1): judged at default settings; --tune 10 tunes every method alike"
    ]
    assert notes(make_plan(task(3), algorithms=["fedavg", "fedprox"], settings={"mu": 0.2})) == []
    assert notes(make_plan(task(3), algorithms=["fedavg", "fedprox"], tuning=read_request(3))) == []
