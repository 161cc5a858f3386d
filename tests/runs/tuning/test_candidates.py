"""Which settings a trial tries."""

from __future__ import annotations

import math
import sys

import pytest

from farfield.algorithms.parameters import SearchRange
from farfield.errors import UserError
from farfield.runs.tuning.candidates import check_optuna, propose, spread

LR = SearchRange("log", low=1e-4, high=1.0)
MU = SearchRange("log", low=1e-4, high=1.0)
KAPPA = SearchRange("linear", low=0.0, high=0.9)
CHOICES = SearchRange("choices", choices=("a", "b", "c"))


def test_every_method_tries_the_same_step_sizes_whatever_else_it_tunes() -> None:
    alone = spread({"lr": LR}, 8, seed=0)
    beside = spread({"mu": MU, "lr": LR, "kappa": KAPPA}, 8, seed=0)
    assert [of["lr"] for of in alone] == [of["lr"] for of in beside]
    assert [of["lr"] for of in beside] != [of["mu"] for of in beside]  # same range, draws of its own


def test_first_trials_fall_into_equal_parts_of_a_range_on_its_scale() -> None:
    drawn = spread({"lr": LR, "kappa": KAPPA, "kind": CHOICES}, 10, seed=3)
    assert len(drawn) == 9  # the tenth, trial 0, is the default
    parts = sorted(math.floor(9 * (math.log10(of["lr"]) + 4) / 4) for of in drawn)
    assert parts == list(range(9))
    assert sorted(math.floor(9 * of["kappa"] / 0.9) for of in drawn) == list(range(9))
    assert sorted(of["kind"] for of in drawn) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_one_trial_is_the_default_alone_and_ten_are_the_most_that_are_spread() -> None:
    assert spread({"lr": LR}, 1, seed=0) == []
    assert spread({"lr": LR}, 40, seed=0) == spread({"lr": LR}, 10, seed=0)


def test_optuna_proposes_near_the_good_ones_and_the_same_every_time() -> None:
    def loss(lr: float) -> float:
        return (math.log10(lr) + 1.0) ** 2  # best at 0.1

    def search(trials: int) -> list[float]:
        tried = [({"lr": 0.5}, loss(0.5)), *((of, loss(of["lr"])) for of in spread({"lr": LR}, 10, seed=0))]
        while len(tried) < trials:
            of = propose({"lr": LR}, tried, 0)
            tried.append((of, loss(of["lr"])))
        return [of["lr"] for of, _ in tried]

    found = search(25)
    assert found == search(25)
    later = [abs(math.log10(lr) + 1.0) for lr in found[10:]]
    assert sum(later) / len(later) < 0.7  # two decades in all directions would give about 1.2


def test_a_default_outside_of_its_range_and_a_failed_trial_are_no_obstacle() -> None:
    tried = [({"lr": 7.0}, 0.9), ({"lr": 0.1}, None), *(({"lr": 10.0**-k}, 0.5) for k in range(4))]
    assert 1e-4 <= propose({"lr": LR}, tried, 0)["lr"] <= 1.0


def test_without_optuna_ten_trials_are_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr("farfield.runs.tuning.candidates.find_spec", lambda name: None)
    check_optuna(10)
    with pytest.raises(UserError, match=r"more than 10 trials need Optuna.*farfield\[tune\]"):
        check_optuna(11)
