"""The study of robust rules still runs, and shows what the page about them states."""

from __future__ import annotations

import pytest
import torch

from studies.robust_rules import ATTACKS, RARE, RULES, attack_with, made_task, measured


def test_a_robust_rule_silences_the_rare_domain_that_the_mean_hears() -> None:
    found = measured([(0, made_task(0))], ["mean", "krum"], ("none",))
    assert found["mean", "none", RARE] > 0.75
    assert found["krum", "none", RARE] < 0.6
    assert found["krum", "none", "others"] > 0.85


def test_the_mean_falls_to_an_attacker_that_a_robust_rule_passes_over() -> None:
    found = measured([(0, made_task(0))], ["mean", "median"], ("reversed",))
    assert found["mean", "reversed", "others"] < 0.6
    assert found["median", "reversed", "others"] > 0.75


def test_the_attacks_are_those_that_the_page_describes() -> None:
    others = torch.tensor([[0.0, 1.0], [2.0, 1.0]])
    own = torch.tensor([1.0, 2.0])
    assert attack_with("reversed", own, others).tolist() == [-1000.0, -2000.0]
    assert attack_with("flipped", own, others).tolist() == [-1.0, -2.0]
    assert attack_with("small", own, others).tolist() == pytest.approx([1.0 - 1.5, 1.0])
    assert ATTACKS == ("none", "reversed", "flipped", "small")
    assert "mean, bound=median" in RULES
