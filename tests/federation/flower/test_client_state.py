"""What a node keeps between messages, when state stays at the site."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from farfield.deployment.site.state_file import load_state, save_state
from farfield.federation.flower.node import Keeping, Refused

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
    assert value(keeping.state(2, "b", NONE, accepted="m1")) == 1.0
    assert value(keeping.state(2, "b", NONE, accepted="m1")) == 1.0


def test_a_reply_that_was_accepted_counts() -> None:
    assert value(after_round_one().state(2, "b", NONE, accepted="m1")) == 1.0


def test_a_refused_reply_stays_refused_when_the_messages_after_it_are_lost_as_well() -> None:
    """Round 2's reply came too late; the messages of rounds 3 and 4 got lost, or their replies did."""
    keeping = after_round_one()
    keeping.state(2, "b", NONE, accepted="m1")
    keeping.stage(2, "b", named(2.0), "m2")
    assert value(keeping.state(5, "e", NONE, accepted="m1")) == 1.0
    keeping.stage(5, "e", named(5.0), "m5")
    assert value(keeping.state(6, "f", NONE, accepted="m1")) == 1.0


def test_a_server_that_goes_back_behind_what_a_site_keeps_is_refused() -> None:
    keeping = after_round_one()
    keeping.state(2, "b", NONE, accepted="m1")
    with pytest.raises(Refused, match=r"gone back to round 1, and what this site keeps is of round 1"):
        keeping.state(1, "c", NONE, accepted="")


def test_what_a_phase_does_to_its_state_stays_with_the_phase() -> None:
    keeping = after_round_one()
    keeping.state(2, "b", NONE)["c"].fill_(9.0)
    assert value(keeping.state(2, "b", NONE)) == 1.0


def test_what_is_kept_for_a_round_alone_is_forgotten_with_it_and_hinders_nobody() -> None:
    keeping = Keeping()
    keeping.stage(1, "a", {"round/x": torch.ones(1)}, "m1")
    assert set(keeping.state(1, "a", NONE)) == {"round/x"}
    assert keeping.state(2, "b", NONE, accepted="m1") == {}
    assert keeping.state(1, "c", NONE, accepted="m1") == {}, "a server may go back: there is nothing to lose"


def test_two_names_for_one_tensor_can_be_saved(tmp_path: Path) -> None:
    shared = torch.arange(3.0)
    save_state(tmp_path / "state", Keeping(kept={"a": shared, "b": shared}))
    kept = load_state(tmp_path / "state").kept
    assert torch.equal(kept["a"], shared)
    assert torch.equal(kept["b"], shared)
