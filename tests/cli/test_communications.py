"""`--communications`: the same local epochs, synchronised more or less often."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError, schedule
from tests.toy import task

SMALL = ["bench", "rotated-digits", "--held-out", "0", "--seeds", "1", "--quiet"]


@pytest.mark.parametrize("budget", [1, 7, 30, 256])
def test_a_schedule_uses_the_whole_budget_as_evenly_as_whole_epochs_allow(budget: int) -> None:
    for communications in range(1, budget + 1):
        lengths = schedule(communications, budget)
        assert len(lengths) == communications
        assert sum(lengths) == budget
        assert max(lengths) - min(lengths) <= 1


def test_from_one_shot_to_every_epoch() -> None:
    assert schedule(1, 8) == (8,)
    assert schedule(3, 8) == (2, 3, 3)
    assert schedule(8, 8) == (1,) * 8
    assert schedule([8, 16, 64, 256], 0) == (8, 8, 48, 192)


def test_every_method_that_trains_gets_the_schedule_of_its_own_budget() -> None:
    plan = make_plan(
        task(3),
        algorithms=["fedavg", "fedprox", "fedsgd", "fedavg+fedadam"],
        rounds=6,
        communications=4,
        settings={"fedprox.local_epochs": 2},
    )
    assert plan.rounds == 4
    assert plan.settings["fedavg"]["schedule"] == [1, 2, 1, 2]
    assert plan.settings["fedprox"]["schedule"] == [3, 3, 3, 3]
    assert plan.settings["fedavg+fedadam"]["schedule"] == [1, 2, 1, 2]
    assert plan.settings["fedsgd"]["schedule"] is None
    assert plan.algorithm("fedavg").epochs(2) == 2


def test_a_list_of_epochs_sets_rounds_and_schedule() -> None:
    plan = make_plan(task(3), algorithms=["fedavg"], communications=[2, 4, 16])
    assert plan.rounds == 3
    assert plan.settings["fedavg"]["schedule"] == [2, 2, 12]


@pytest.mark.slow
def test_the_local_steps_are_the_same_however_often_clients_synchronise(
    farfield: Callable[..., Any], tmp_path: Path
) -> None:
    seen: dict[str, dict[str, Any]] = {}
    for communications in ("1", "3", "4,6", "6"):
        options = [] if "," in communications else ["--rounds", "3"]
        file = f"{communications}.json"
        options += ["--out", communications, "--json", file]
        ran = farfield(*SMALL, "-a", "fedavg", "--communications", communications, *options)
        assert ran.code == 0, ran.err
        (seen[communications],) = json.loads((tmp_path / file).read_text())
    # The task's own local epochs are two, so three rounds are six epochs.
    assert [row["rounds"] for row in seen.values()] == [1, 3, 2, 6]
    assert len({row["local_steps"] for row in seen.values()}) == 1
    assert len({row["model_sha256"] for row in seen.values()}) == 4
    assert seen["6"]["bytes_up"] > seen["1"]["bytes_up"]


def test_as_many_communications_as_rounds_change_nothing(farfield: Callable[..., Any], tmp_path: Path) -> None:
    for name, more in (("plain", []), ("scheduled", ["--communications", "3"])):
        options = ["--rounds", "3", "--out", name, "--json", f"{name}.json", *more]
        assert farfield(*SMALL, "-a", "fedavg", *options).code == 0
    plain, scheduled = (json.loads((tmp_path / f"{n}.json").read_text())[0] for n in ("plain", "scheduled"))
    assert plain["model_sha256"] == scheduled["model_sha256"]


def test_training_takes_it_too(farfield: Callable[..., Any], tmp_path: Path) -> None:
    ran = farfield("train", "rotated-digits", "--out", "m", "--rounds", "2", "--communications", "1")
    assert ran.code == 0, ran.err
    assert "round 1," in ran.out
    assert "| schedule | [4] |" in (tmp_path / "m" / "README.md").read_text()


MISTAKES = {
    "more than epochs": (["--rounds", "3", "--communications", "7"], "1 to 6"),
    "none": (["--communications", "0"], "communications = 0"),
    "a negative number": (["--communications", "-2"], "communications = -2"),
    "words": (["--communications", "often"], "--communications takes a number"),
    "a hole in the list": (["--communications", "2,,4"], "--communications takes a number"),
    "epochs that go back": (["--communications", "8,4"], "each after the one before"),
    "an epoch twice": (["--communications", "4,4"], "each after the one before"),
    "epoch zero": (["--communications", "0,4"], "from 1 on"),
    "epochs and rounds": (["--rounds", "3", "--communications", "2,4"], "omit rounds"),
    "epochs and local epochs": (["--communications", "2,4", "--set", "local_epochs=3"], "local_epochs"),
    "steps": (["--communications", "2", "--set", "local_steps=5"], "local_steps"),
    "another schedule": (["--communications", "2", "--set", "schedule=[1,2]"], "schedule"),
    "one round for two stages": (["-a", "fedloe-irm", "--communications", "1"], "at least 2 rounds"),
}


@pytest.mark.parametrize(("arguments", "phrase"), MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.parametrize("command", [["bench", "rotated-digits"], ["train", "rotated-digits", "--out", "m"]])
def test_a_mistake_gets_one_sentence(
    farfield: Callable[..., Any], tmp_path: Path, command: list[str], arguments: list[str], phrase: str
) -> None:
    ran = farfield(*command, *arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert phrase in " ".join(ran.err.split())
    assert len(ran.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_from_python_a_mistake_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="1 to 4"):
        make_plan(task(3), algorithms=["fedavg"], communications=5)
