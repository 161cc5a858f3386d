"""Presets: each is a plan that can be made, and what is typed wins over it."""

from __future__ import annotations

import pytest

from farfield.bench.plan import make_plan
from farfield.bench.presets import load, names, with_preset
from farfield.errors import UserError
from farfield.tasks import load as load_task


@pytest.mark.parametrize("name", names())
def test_every_preset_makes_a_plan_in_which_each_of_its_settings_arrives(name: str) -> None:
    preset = load(name)
    plan = make_plan(load_task("rotated-digits"), **with_preset(name, {"held_out": ["0"]}))
    assert plan.algorithms == tuple(preset.options["algorithms"])
    assert len(plan.seeds) == preset.options["seeds"]
    assert preset.about.lower().startswith(name.split("/")[0])
    for key, value in preset.settings.items():
        owner, _, field = key.rpartition(".")
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
    assert fedilc.rules[0] == "oracle"


def test_what_is_given_wins_over_the_preset() -> None:
    given = {"rounds": 7, "settings": {"lr": 0.5, "fediir.gamma": 3.0}, "seeds": [4]}
    plan = make_plan(load_task("rotated-digits"), **with_preset("fediir/pacs", given))
    assert (plan.rounds, plan.seeds, plan.cohort) == (7, (4,), 3)
    assert (plan.settings["fediir"]["lr"], plan.settings["fediir"]["gamma"]) == (0.5, 3.0)
    assert plan.settings["fediir"]["momentum"] == 0.9


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'fediir/pacs'"):
        load("fediir/pac")
