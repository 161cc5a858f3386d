"""A bench whose runs lost replies says so; records from before losses were counted, or damaged ones, do no harm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farfield.report.lost_replies import loss_doubts, lost_unexpectedly, runs_with_losses
from tests.report.sweeps import sweep

LATE = "no reply within the deadline of 2 s"


def with_lost(lost: Any, deadline: float | None = None, **more: Any) -> Any:
    of = sweep({"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}})
    rows = [{**of.rows[0], "lost": lost, **more}, *({**row, "lost": []} for row in of.rows[1:])]
    return replace(of, rows=rows, plan={**of.plan, "deadline": deadline})


def entry(**reasons: int) -> dict[str, Any]:
    return {"name": "b", "client": 1, "asked": 4, "took_part": 3, "dropped": reasons}


def test_a_lost_reply_is_a_doubt_and_an_exit_code() -> None:
    found = with_lost([entry(ended=1)])
    (doubt,) = loss_doubts(found)
    assert doubt.startswith("1 run lost replies of clients, so a rerun can give another model: fedavg without x, seed ")
    assert doubt.endswith(": of b (ended).")
    assert lost_unexpectedly(found)


@pytest.mark.parametrize(
    ("deadline", "reason", "unexpected"), [(2.0, LATE, False), (None, LATE, True), (2.0, "x", True)]
)
def test_only_what_is_late_for_a_deadline_that_was_asked_for_is_expected(
    deadline: float | None, reason: str, unexpected: bool
) -> None:
    found = with_lost([entry(**{reason: 3})], deadline)
    assert loss_doubts(found)
    assert lost_unexpectedly(found) is unexpected


def test_a_bench_that_lost_nothing_has_no_doubt_of_it() -> None:
    assert loss_doubts(with_lost([])) == []
    assert not lost_unexpectedly(with_lost([]))


def test_a_lost_validation_alone_changes_no_model() -> None:
    assert runs_with_losses(with_lost([{**entry(), "validations_lost": 2}])) == []


def test_records_from_before_losses_were_counted_are_judged_by_their_events() -> None:
    of = sweep({"fedavg": {"x": [0.5], "y": [0.5]}})
    first = of.rows[0]
    identity = {"algorithm": first["algorithm"], "seed": first["seed"], "held_out": first["held_out"]}
    dropped = {**identity, "kind": "reply-dropped", "round": 2, "client": 1, "phase": "train", "message": "ended"}
    unmeasured = {**dropped, "phase": "evaluate"}
    assert loss_doubts(replace(of, events=[unmeasured])) == []
    (doubt,) = loss_doubts(replace(of, events=[dropped, {**dropped, "round": "two"}]))
    assert doubt.endswith(": of client 1 (ended).")


@pytest.mark.parametrize("lost", [None, 3, "x", {}, [3], [{}], [{"dropped": 3}], [{"dropped": ["x"]}], [None]])
def test_damaged_records_of_losses_end_in_no_traceback(lost: Any) -> None:
    assert loss_doubts(with_lost(lost)) == []
    assert not lost_unexpectedly(with_lost(lost))
