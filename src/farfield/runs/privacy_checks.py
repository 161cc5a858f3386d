"""Checks of a plan's private variants, before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from farfield.privacy.accountant import check_installed
from farfield.privacy.statement import large_delta
from farfield.runs.settings import PlanError

if TYPE_CHECKING:  # a plan is checked while it is made
    from farfield.runs.plan import Plan


def check_privacy(plan: Plan) -> None:
    """Refuse private variants that cannot be accounted, or whose promise the rest of the plan would break."""
    private = [label for label, of in plan.settings.items() if of["privacy"] != "none"]
    if not private:
        return
    check_installed()
    if plan.tuning is not None:
        raise PlanError(
            f"tuning looks at exact validation figures, which are withheld for '{private[0]}'; tune without privacy on "
            "public data, or give settings"
        )


def privacy_plan_notes(plan: Plan, rows: Mapping[str, int]) -> Iterator[str]:
    """Yield what a user should know of private variants before they run."""
    most = max(rows.values(), default=1)
    for label, of in plan.settings.items():
        if of["privacy"] == "none":
            continue
        if not of["noise"]:
            yield f"{label}: noise=0 is no privacy: ε is infinite"
        if of["privacy"] == "record" and (large := large_delta(of["delta"], most)):
            yield f"{label}: {large}"
