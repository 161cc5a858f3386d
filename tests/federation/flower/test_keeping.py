"""What a node keeps between messages, when state stays at the site."""

from __future__ import annotations

import torch

from farfield.federation.flower.node import Keeping

NONE: frozenset[int] = frozenset()


def named(value: float) -> dict[str, torch.Tensor]:
    return {"c": torch.tensor([value])}


def value(state: dict[str, torch.Tensor]) -> float | None:
    return float(state["c"]) if state else None


def after_round_one() -> Keeping:
    keeping = Keeping()
    assert keeping.state(1, "a", NONE) == {}
    keeping.stage(1, "a", named(1.0), "m1")
    return keeping


def test_the_phases_of_a_round_go_on_from_each_other() -> None:
    assert value(after_round_one().state(1, "a", NONE)) == 1.0


def test_a_round_that_counted_is_gone_on_from() -> None:
    assert value(after_round_one().state(2, "b", NONE)) == 1.0


def test_a_round_that_was_skipped_is_forgotten() -> None:
    assert value(after_round_one().state(2, "b", frozenset({1}))) is None


def test_a_round_that_is_made_again_is_forgotten_first() -> None:
    """A server that was killed before its checkpoint makes the round again, in another attempt."""
    keeping = after_round_one()
    keeping.state(2, "b", NONE)
    keeping.stage(2, "b", named(2.0), "m2")
    assert value(keeping.state(2, "c", NONE)) == 1.0


def test_validation_after_a_skipped_round_sees_the_state_before_it() -> None:
    keeping = after_round_one()
    keeping.state(2, "b", NONE)
    keeping.stage(2, "b", named(2.0), "m2")
    assert value(keeping.state(2, "b", frozenset({2}))) == 1.0
    keeping.stage(2, "b", named(1.0), "m3")
    assert value(keeping.state(3, "c", frozenset({2}))) == 1.0


def test_what_goes_with_a_refused_reply_is_forgotten_and_the_phase_before_it_is_not() -> None:
    keeping = after_round_one()
    keeping.state(1, "a", NONE)
    keeping.stage(1, "a", named(1.5), "m2")
    assert value(keeping.state(2, "b", NONE, refused="m2")) == 1.0
    assert value(keeping.state(2, "b", NONE, refused="m2")) == 1.0


def test_a_refusal_of_another_reply_changes_nothing() -> None:
    assert value(after_round_one().state(2, "b", NONE, refused="m0")) == 1.0


def test_what_a_phase_does_to_its_state_stays_with_the_phase() -> None:
    keeping = after_round_one()
    keeping.state(2, "b", NONE)["c"].fill_(9.0)
    assert value(keeping.state(2, "b", NONE)) == 1.0
