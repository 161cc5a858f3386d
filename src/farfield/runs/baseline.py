"""Which variant the others are compared with."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farfield.report.metric_values import BASELINE, default_baseline
from farfield.runs.settings import PlanError
from farfield.runs.variants import Variant

if TYPE_CHECKING:  # a plan names its baseline while it is made
    from farfield.runs.plan import Plan


#: How the note begins that says what stands in for FedAvg.
WITHOUT_FEDAVG = "FedAvg is not in this bench"


def baseline_label(asked: str | None, variants: Sequence[Variant]) -> str:
    """Return the label of the variant that differences are to. A method's name stands for its first variant."""
    if asked is None:
        return default_baseline({variant.label: variant.method for variant in variants})
    for named in ([v.label for v in variants], [v.method for v in variants]):
        if asked in named:
            return variants[named.index(asked)].label
    labels = [variant.label for variant in variants]
    near = difflib.get_close_matches(asked, labels, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"this bench has {', '.join(labels)}"
    raise PlanError(f"there is no '{asked}' to compare with; {hint}")


def baseline_notes(plan: Plan) -> tuple[str, ...]:
    """Say what stands in for FedAvg, if nobody chose it."""
    methods = {variant.label: variant.method for variant in plan.variants}
    if len(methods) < 2 or BASELINE in methods.values() or plan.baseline != default_baseline(methods):
        return ()
    return (f"{WITHOUT_FEDAVG}, so differences are to '{plan.baseline}', the first method; --baseline names another",)
