"""What is sensitive in what leaves a client is printed, not hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("name", ["fedloe-erm", "fedloe-irm", "fedloe-rex", "fedloe-fish", "fedloe-irm+fedomg"])
def test_fedloe_says_that_predictions_and_labels_leave_a_client(farfield: Callable[..., Any], name: str) -> None:
    ran = farfield("show", name)
    assert ran.code == 0
    card = " ".join(ran.out.split())
    assert card.count("predictions and labels of the tuning rows leave the client") == 2
    assert "tuning rows × clients × 10" in card
    assert "train_head" in card


def test_fedavg_has_nothing_to_warn_of(farfield: Callable[..., Any]) -> None:
    assert "leave the client" not in " ".join(farfield("show", "fedavg").out.split())
