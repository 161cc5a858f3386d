"""What a method keeps at a client: staged in a round, committed when it counts, discarded when it does not."""

from __future__ import annotations

import pytest
import torch

from farfield.federation.client_state import ClientStates, SiteState
from farfield.federation.refusal import Refused

NONE: frozenset[int] = frozenset()


def named(value: float) -> dict[str, torch.Tensor]:
    return {"c": torch.tensor([value])}


def value(state: dict[str, torch.Tensor]) -> float | None:
    return float(state["c"]) if state else None


def values(states: ClientStates, clients: int = 2) -> list[float | None]:
    return [value(states.of(number).current) for number in range(clients)]


def test_a_phase_sees_what_is_staged_and_a_discarded_round_leaves_what_was_kept() -> None:
    states = ClientStates()
    states.stage(0, named(1.0))
    assert values(states) == [1.0, None]
    states.commit()
    states.stage(0, named(2.0))
    states.stage(1, named(3.0))
    assert values(states) == [2.0, 3.0]
    states.discard()
    assert values(states) == [1.0, None]
    states.commit()
    assert values(states) == [1.0, None], "there was nothing left to commit"


def test_a_checkpoint_holds_what_counts_if_the_round_does_and_nothing_of_the_round_alone() -> None:
    states = ClientStates()
    states.stage(0, named(1.0))
    states.commit()
    states.stage(0, named(2.0) | {"round/x": torch.ones(1)})
    states.stage(1, {"round/x": torch.ones(1)})
    saved = states.save()
    assert {number: list(state) for number, state in saved.items()} == {0: ["c"]}
    assert value(saved[0]) == 2.0
    assert set(states.of(1).current) == {"round/x"}, "a later phase of the round still needs it"
    states.commit()
    assert states.of(1).current == {}
    resumed = ClientStates()
    resumed.stage(5, named(9.0))
    resumed.load(saved)
    assert values(resumed, 6) == [2.0, None, None, None, None, None]


def test_a_phase_that_changes_its_copy_does_not_change_the_state() -> None:
    states = ClientStates()
    states.stage(0, named(1.0))
    states.of(0).copy()["c"].fill_(9.0)
    assert values(states) == [1.0, None]


def after_round_one() -> SiteState:
    site = SiteState()
    assert site.start_phase(1, "a", NONE, "") == {}
    site.stage(1, "a", named(1.0), "m1")
    return site


def test_the_phases_of_a_round_go_on_from_each_other() -> None:
    assert value(after_round_one().start_phase(1, "a", NONE, "m1")) == 1.0


def test_a_round_that_counted_is_gone_on_from() -> None:
    assert value(after_round_one().start_phase(2, "b", NONE, "m1")) == 1.0


def test_a_round_that_was_skipped_is_forgotten() -> None:
    assert value(after_round_one().start_phase(2, "b", frozenset({1}), "m1")) is None


def test_a_round_that_is_made_again_is_forgotten_first() -> None:
    """A server that was killed before its checkpoint makes the round again, in another attempt."""
    site = after_round_one()
    site.start_phase(2, "b", NONE, "m1")
    site.stage(2, "b", named(2.0), "m2")
    assert value(site.start_phase(2, "c", NONE, "m2")) == 1.0


def test_validation_after_a_skipped_round_sees_the_state_before_it() -> None:
    site = after_round_one()
    site.start_phase(2, "b", NONE, "m1")
    site.stage(2, "b", named(2.0), "m2")
    assert value(site.start_phase(2, "b", frozenset({2}), "m2")) == 1.0
    site.stage(2, "b", named(1.0), "m3")
    assert value(site.start_phase(3, "c", frozenset({2}), "m3")) == 1.0


def test_what_goes_with_a_refused_reply_is_forgotten_and_the_phase_before_it_is_not() -> None:
    site = after_round_one()
    site.start_phase(1, "a", NONE, "m1")
    site.stage(1, "a", named(1.5), "m2")
    assert value(site.start_phase(2, "b", NONE, "m1")) == 1.0
    assert value(site.start_phase(2, "b", NONE, "m1")) == 1.0


def test_a_reply_that_was_accepted_counts() -> None:
    assert value(after_round_one().start_phase(2, "b", NONE, "m1")) == 1.0


def test_a_refused_reply_stays_refused_when_the_messages_after_it_are_lost_as_well() -> None:
    """Round 2's reply came too late; the messages of rounds 3 and 4 got lost, or their replies did."""
    site = after_round_one()
    site.start_phase(2, "b", NONE, "m1")
    site.stage(2, "b", named(2.0), "m2")
    assert value(site.start_phase(5, "e", NONE, "m1")) == 1.0
    site.stage(5, "e", named(5.0), "m5")
    assert value(site.start_phase(6, "f", NONE, "m1")) == 1.0


def test_a_server_that_goes_back_behind_what_a_site_keeps_is_refused() -> None:
    site = after_round_one()
    site.start_phase(2, "b", NONE, "m1")
    with pytest.raises(Refused, match=r"gone back to round 1, and what this site keeps is of round 1"):
        site.start_phase(1, "c", NONE, "")


def test_what_a_phase_does_to_its_state_stays_with_the_phase() -> None:
    site = after_round_one()
    site.start_phase(2, "b", NONE, "m1")["c"].fill_(9.0)
    assert value(site.start_phase(2, "b", NONE, "m1")) == 1.0


def test_what_is_kept_for_a_round_alone_is_forgotten_with_it_and_hinders_nobody() -> None:
    site = SiteState()
    site.stage(1, "a", {"round/x": torch.ones(1)}, "m1")
    assert set(site.start_phase(1, "a", NONE, "m1")) == {"round/x"}
    assert site.start_phase(2, "b", NONE, "m1") == {}
    assert site.start_phase(1, "c", NONE, "m1") == {}, "a server may go back: there is nothing to lose"
