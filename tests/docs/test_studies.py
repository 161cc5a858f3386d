"""The studies behind the figures of the docs still run, on a few draws, and print what the pages state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farfield.tasks.task import Domain
from studies.false_alarms import shared_training
from studies.membership_inference import USUAL, added, attack, draw, success, trained
from studies.new_site_coverage import simulated
from studies.power import found


def test_a_prediction_interval_covers_a_new_site_and_the_interval_of_the_mean_does_not() -> None:
    prediction, mean = simulated(sites=6, spread=0.6, rows=1000, draws=300)
    assert prediction == pytest.approx(0.95, abs=0.04)
    assert mean < 0.75


def test_far_out_domains_raise_false_alarms_and_equal_ones_do_not() -> None:
    assert shared_training(domains=6, shift=0.0, tail=30.0, draws=400) == pytest.approx(0.05, abs=0.035)
    assert shared_training(domains=6, shift=10.0, tail=3.0, draws=400) > 0.06


def test_two_points_are_seldom_found_with_four_domains() -> None:
    assert found(domains=4, seeds=3, domain_std=0.02, seed_std=0.04, draws=60) < 0.15
    assert found(domains=40, seeds=3, domain_std=0.01, seed_std=0.01, draws=20) > 0.9


def observed(gain: float, models: int = 60, rows: int = 150) -> tuple[Any, Any]:
    """Logits of rows that are higher by `gain` standard deviations where the row was trained on."""
    rng = np.random.default_rng(0)
    members = rng.random((models, rows)) < 0.5
    hardness = rng.normal(0, 3, rows)
    return hardness + gain * members + rng.normal(0, 1, members.shape), members


def test_the_attack_finds_members_that_stand_out_and_none_where_there_is_nothing_to_find() -> None:
    """With known Gaussians the best area is Φ(gain / √2): 0.921 for a gain of 2, 0.5 for none."""
    strong, nothing = (success(attack(*of), of[1]) for of in (observed(2.0), observed(0.0)))
    assert strong.area == pytest.approx(0.921, abs=0.01)
    assert strong.caught == pytest.approx(0.37, abs=0.05), "the power of a test at 1 % for two standard deviations"
    assert strong.epsilon > 2.5
    assert nothing.area == pytest.approx(0.5, abs=0.02)
    assert nothing.caught == pytest.approx(0.01, abs=0.01)
    assert nothing.epsilon < 0.1


def test_the_lower_bound_stays_below_the_epsilon_of_a_mechanism_that_reaches_it() -> None:
    """Randomised response with ε = 1: the truth with probability e / (1 + e)."""
    rng = np.random.default_rng(1)
    members = rng.random((100, 200)) < 0.5
    told = np.where(rng.random(members.shape) < np.e / (1 + np.e), members, ~members).astype(float)
    assert 0.85 < success(told, members).epsilon <= 1.0


@pytest.mark.parametrize("noise", [None, 1.0])
def test_a_federation_of_the_attack_is_trained_on_the_chosen_rows_alone(noise: float | None) -> None:
    setup = replace(USUAL, rounds=2)
    draw_rows = torch.Generator().manual_seed(0)
    made = [Domain(name, torch.randn(20, 3, generator=draw_rows), torch.arange(20) % 2) for name in "ab"]
    chosen = [torch.arange(10), torch.arange(5, 15)]
    model = trained(setup, made, chosen, noise, seed=0)
    for domain, rows in zip(made, chosen, strict=True):
        outside = torch.ones(20, dtype=torch.bool)
        outside[rows] = False
        domain.x[outside] += 5.0
    assert torch.equal(model.vector, trained(setup, made, chosen, noise, seed=0).vector)
    made[0].x[chosen[0]] += 5.0
    assert not torch.equal(model.vector, trained(setup, made, chosen, noise, seed=0).vector)


def test_parts_of_the_study_are_put_together(tmp_path: Path) -> None:
    row = {"setup": "usual", "epsilon": 2.0, "auc": 0.5, "tpr_at_1pct_fpr": 0.01, "accuracy_on_others": 0.8}
    first = {**row, "epsilon": float("inf"), "auc": 0.7}
    added([row], tmp_path / "t.csv")
    found = added([first, {**row, "auc": 0.52}], tmp_path / "t.csv")
    assert [(of["epsilon"], of["auc"]) for of in found] == [(float("inf"), 0.7), (2.0, 0.52)]
    draw(found, tmp_path / "f.svg")
    drawn = (tmp_path / "f.svg").read_text()
    assert drawn.count("<circle") == 6
    assert "none" in drawn
