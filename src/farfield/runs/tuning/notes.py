"""What a bench says about settings that nobody has tuned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from farfield.records.setting_text import value_text
from farfield.runs.tuning.request import search_space

if TYPE_CHECKING:
    from farfield.runs.plan import Plan

#: Parameters that a note names per method.
NAMED = 2


def untuned_notes(plan: Plan, given: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return one note for all variants whose own parameters are at their defaults; none where they are tuned or set."""
    if plan.tuning is not None or not plan.held_out or len(plan.variants) < 2:
        return ()
    judged = []
    for variant in plan.variants:
        settings = plan.settings[variant.label]
        own = [
            name for name in search_space(variant.method, settings) if name != "lr" and name not in given[variant.label]
        ]
        if own:
            values = [f"{name}={value_text(settings[name])}" for name in own[:NAMED]]
            more = [f"{len(own) - NAMED} more"] if len(own) > NAMED else []
            judged.append(f"{variant.label} ({', '.join([*values, *more])})")
    if not judged:
        return ()
    return (f"never tuned: {', '.join(judged)}: judged at default settings; --tune 10 tunes every method alike",)
