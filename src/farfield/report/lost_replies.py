"""Runs whose model lacks replies of clients: in the table, in the headline's doubts and in the exit code of a bench."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farfield.records.participation import EVALUATE, participation
from farfield.report.collect import Sweep
from farfield.report.formats import listed, plural, public

#: Runs that one sentence describes; the others are counted.
_DESCRIBED = 3
#: How the problem of a client begins that missed a deadline which the bench was asked to have.
_LATE = "no reply within the deadline"


def runs_with_losses(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the runs, one row each, in which a client's reply did not reach the model, with `lost` in each."""
    found = []
    for row in sweep.runs:
        lost = row.get("lost")
        if not isinstance(lost, list):  # of a version that did not count them: its events say it
            lost = participation([], _events_of(sweep, row), lambda client: f"client {client}").to_rows()
        # Records can be damaged: what cannot be read is left out.
        named = [entry for entry in lost if isinstance(entry, Mapping) and isinstance(entry.get("dropped"), Mapping)]
        training = [entry for entry in named if entry["dropped"]]
        if training or row.get("skipped_rounds"):
            found.append({**row, "lost": training})
    return found


def loss_doubts(sweep: Sweep) -> list[str]:
    """Say which runs lost replies, and whose and why; nothing for a bench that lost none."""
    runs = runs_with_losses(sweep)
    if not runs:
        return []
    described = [_run(row) for row in runs[:_DESCRIBED]]
    more = [f"{len(runs) - _DESCRIBED} more"] if len(runs) > _DESCRIBED else []
    return [
        f"{plural(len(runs), 'run')} lost replies of clients, so a rerun can give another model: "
        f"{listed([*described, *more])}."
    ]


def lost_unexpectedly(sweep: Sweep) -> bool:
    """Whether replies were lost for another reason than a deadline that the bench was asked to keep."""
    asked = sweep.plan.get("deadline") is not None
    reasons = [why for row in runs_with_losses(sweep) for entry in row["lost"] for why in entry["dropped"]]
    skipped = any(row.get("skipped_rounds") for row in runs_with_losses(sweep))
    return (skipped and not asked) or any(not (asked and str(why).startswith(_LATE)) for why in reasons)


def _run(row: Mapping[str, Any]) -> str:
    names = [public(str(entry.get("name"))) for entry in row["lost"]]
    reasons = list(dict.fromkeys(public(str(why)) for entry in row["lost"] for why in entry["dropped"]))
    whose = f"of {_some(names)} ({_some(reasons, '; ')})" if names else "too few clients replied in some rounds"
    where = row.get("fold") or row["held_out"]
    return f"{row['algorithm']} without {public(str(where))}, seed {row['seed']}: {whose}"


def _some(names: list[str], between: str = ", ") -> str:
    shown = between.join(names[:_DESCRIBED])
    return f"{shown} and {len(names) - _DESCRIBED} more" if len(names) > _DESCRIBED else shown


def _events_of(sweep: Sweep, row: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    fold = row.get("fold") or row["held_out"]
    for event in sweep.events:
        same = event["algorithm"] == row["algorithm"] and event["seed"] == row["seed"] and event["held_out"] == fold
        if same and event.get("phase") != EVALUATE:
            yield event
