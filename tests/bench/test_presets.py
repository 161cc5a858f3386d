"""Presets: each is a plan that can be made, and what is typed wins over it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from farfield.bench.plan import make_plan
from farfield.bench.presets import load, names, with_preset
from farfield.errors import UserError
from farfield.models import ModelState
from farfield.tasks import Task
from farfield.tasks import load as load_task


def digits() -> Task:
    """A task that every preset can stand on: one with an official split, because some presets ask for it."""
    task = load_task("rotated-digits")
    return replace(task, domains=tuple(replace(d, validation=torch.arange(0, len(d), 10)) for d in task.domains))


@pytest.mark.parametrize("name", names())
def test_every_preset_makes_a_plan_in_which_each_of_its_settings_arrives(name: str) -> None:
    preset = load(name)
    plan = make_plan(digits(), **with_preset(name, {"held_out": ["0"]}))
    assert plan.algorithms == tuple(preset.options["algorithms"])
    assert len(plan.seeds) == preset.options["seeds"]
    assert preset.about.lower().startswith(name.split("/")[0])
    for key, value in preset.settings.items():
        owner, _, field = key.rpartition(".")
        if owner == "model":
            assert getattr(plan.model, field) == (tuple(value) if isinstance(value, list) else value), key
            continue
        having = [a for a in plan.algorithms if field in plan.settings[a] and owner in ("", a)]
        assert having, key
        assert all(plan.settings[a][field] == value for a in having), key


def test_the_papers_numbers_are_where_they_belong() -> None:
    plan = make_plan(load_task("rotated-digits"), **with_preset("fediir/rotated-mnist", {}))
    assert plan.rounds == 100
    assert plan.cohort == 5
    fediir = plan.settings["fediir"]
    assert (fediir["lr"], fediir["batch_size"], fediir["gamma"], fediir["upsilon"]) == (0.01, 64, 0.01, 0.95)
    assert fediir["half"] is False
    fedilc = make_plan(load_task("rotated-digits"), **with_preset("fedilc/colored-mnist", {}))
    assert fedilc.settings["fedilc-inter-geo"]["fishr"] == 15
    assert fedilc.rounds_of["fedilc-inter-geo"] == 301
    assert fedilc.rules[0] == "oracle-loss"  # the lowest loss on the target, as in the paper's tables


#: What the papers say, typed from them: preset, method, where, value.
FROM_THE_PAPERS = [
    ("fedloe/pacs", "fedloe-irm", "lam", 100),
    ("fedloe/pacs", "fedloe-rex", "lam", 100),
    ("fedloe/pacs", "fedloe-irm", "head_lr", 0.05),
    ("fedloe/pacs", "fedloe-irm", "head_weight_decay", 5e-4),
    ("fedloe/pacs", "fedloe-irm", "lr", 5e-5),
    ("fedloe/pacs", "fedloe-fish", "meta_lr", 0.05),
    ("fedloe/office-home", "fedloe-erm", "lr", 3e-5),
    ("fedloe/iwildcam", "fedloe-fish", "meta_lr", 0.01),
    ("fedomg/pacs", "fedomg", "kappa", 0.5),
    ("fedomg/pacs", "fedomg", "solver", "paper"),
    ("fedomg/pacs", "fedomg", "rescale", "1+kappa^2"),
    ("fedomg/vlcs", "fediir+fedomg", "gamma", 1e-4),
    ("fedomg/vlcs", "fediir+fedomg", "kappa", 0.5),
    ("fedomg/cifar10", "fedomg", "lr", 0.005),
    ("fedilc/eicu", "fedilc-intra-geo", "fishr", 0.1),
    ("fedilc/rotated-cifar10", "fedilc-fishr", "server_lr", 1e-4),
    ("fedcir/pacs", "fedcir", "batch_size", 32),
]


@pytest.mark.parametrize(("preset", "method", "field", "value"), FROM_THE_PAPERS)
def test_a_preset_says_what_the_paper_says(preset: str, method: str, field: str, value: object) -> None:
    plan = make_plan(digits(), **with_preset(preset, {}))
    assert plan.settings[method][field] == value


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("fedloe/pacs", (8, 256), (4, 8)),
        ("fedloe/office-home", (8, 256), (4, 8)),
        ("fedloe/iwildcam", (80, 5120), (5, 320)),
    ],
)
def test_fedloes_presets_have_both_stages_of_table_5(
    name: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    plan = make_plan(digits(), **with_preset(name, {}))
    method = plan.algorithm("fedloe-irm")
    start = method.start(ModelState(torch.zeros(1), torch.zeros(0)))
    stages = [method.in_second_stage(replace(start, round=number)) for number in range(plan.rounds)]
    epochs = [method.epochs(r + 1) for r in range(plan.rounds)]
    for stage, (communications, budget) in ((False, first), (True, second)):
        of_stage = [e for e, s in zip(epochs, stages, strict=True) if s is stage]
        assert (len(of_stage), sum(of_stage)) == (communications, budget)


def test_each_paper_has_its_own_iwildcam() -> None:
    assert load("fedcir/iwildcam").task == "iwildcam-10"
    fedloe = load("fedloe/iwildcam")
    assert (fedloe.task, fedloe.options["validation"]) == ("iwildcam-wilds", "official")


def test_what_is_given_wins_over_the_preset() -> None:
    given = {"rounds": 7, "settings": {"lr": 0.5, "fediir.gamma": 3.0}, "seeds": [4]}
    plan = make_plan(load_task("rotated-digits"), **with_preset("fediir/pacs", given))
    assert (plan.rounds, plan.seeds, plan.cohort) == (7, (4,), 3)
    assert (plan.settings["fediir"]["lr"], plan.settings["fediir"]["gamma"]) == (0.5, 3.0)
    assert plan.settings["fediir"]["momentum"] == 0.9


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'fediir/pacs'"):
        load("fediir/pac")


def test_epochs_that_are_asked_for_win_over_a_tasks_own_number_of_steps() -> None:
    task = replace(load_task("rotated-digits"), defaults={"rounds": 2, "local_steps": 5, "batch_size": 16})
    assert make_plan(task, algorithms=["fedavg"]).settings["fedavg"]["local_steps"] == 5
    plan = make_plan(task, algorithms=["fedavg"], settings={"local_epochs": 3})
    assert (plan.settings["fedavg"]["local_steps"], plan.settings["fedavg"]["local_epochs"]) == (None, 3)
    plan = make_plan(task, algorithms=["fedavg"], rounds=4, communications=2)
    assert plan.settings["fedavg"]["schedule"] == [2, 2]


def test_a_tasks_own_partition_comes_with_its_clients_or_not_at_all() -> None:
    own = {"partition": "dirichlet:0.5", "clients": 10, "cohort": 4}
    task = replace(load_task("rotated-digits"), defaults=own, held_out=("75",))
    plan = make_plan(task, algorithms=["fedavg"], rounds=1)
    assert (plan.partition, plan.clients, plan.cohort, plan.held_out) == ("dirichlet:0.5", 10, 4, ("75",))
    plan = make_plan(task, algorithms=["fedavg"], rounds=1, partition="domain", held_out=["all"])
    assert (plan.partition, plan.clients, plan.cohort, len(plan.held_out)) == ("domain", None, None, 6)
    plan = make_plan(task, algorithms=["fedavg"], rounds=1, clients=20)
    assert (plan.partition, plan.clients, plan.cohort) == ("split", 20, None)


def test_some_of_a_presets_methods_run_without_the_settings_of_the_others() -> None:
    plan = make_plan(load_task("rotated-digits"), **with_preset("fediir/pacs", {"algorithms": ["fedavg"]}))
    assert plan.algorithms == ("fedavg",)
    assert plan.settings["fedavg"]["lr"] == 2.5e-3
    plan = make_plan(load_task("rotated-digits"), **with_preset("fedcir/pacs", {"algorithms": ["fedavg", "fedcir"]}))
    assert plan.settings["fedcir"]["lambda_reg"] == 0.5


def test_every_preset_says_in_a_whole_sentence_what_it_is() -> None:
    for name in names():
        about = load(name).about
        assert about.count("(") == about.count(")")
        assert not about.endswith((",", ";", ":", "see"))
