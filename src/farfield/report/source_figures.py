"""What the source domains' validation rows say of a chosen round, beside what the held-out domain says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

#: Metrics that are means over rows, so that the rows of all domains can be pooled.
POOLED = ("accuracy", "loss")

Validation = Mapping[str, Mapping[str, float | None]]
Figures = dict[str, float | None]


def source_figures(validation: Validation) -> dict[str, Figures]:
    """Return the metrics of a round's validation rows, as `validation` and as `participating`.

    `validation` gives every source domain the same weight, as the rule 'source-validation' does. `participating` gives
    every row the same weight; it has the metrics that are means over rows, and their number `n`. A metric that a domain
    cannot define is averaged over the domains that do. A loss that is not finite leaves no mean.
    """
    names = [name for name in dict.fromkeys(n for of in validation.values() for n in of) if name != "n"]
    mean = {name: _mean([of.get(name) for of in validation.values()], name) for name in names}
    rows = sum(of.get("n") or 0.0 for of in validation.values())
    pooled = {name: _pooled(validation, name, rows) for name in names if name in POOLED}
    if "rmse" in names:  # the root of a mean, not a mean of roots
        pooled["rmse"] = None if (loss := pooled.get("loss")) is None else math.sqrt(loss)
    return {"validation": mean, "participating": {**pooled, "n": rows}}


def in_label_units(validation: Validation, scale: float) -> dict[str, Figures]:
    """Return a regression's validation with its squared errors, and their roots, in the units of the labels.

    Clients measure on labels that were divided by `scale`; the held-out domain is measured in the labels' own units.
    """
    return {
        domain: {**of, **_errors(None if (loss := of.get("loss")) is None else loss * scale**2)}
        for domain, of in validation.items()
    }


def _errors(loss: float | None) -> Figures:
    return {"loss": loss, "rmse": None if loss is None or not math.isfinite(loss) else math.sqrt(loss)}


def _mean(values: list[float | None], name: str) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or (name in POOLED and len(known) < len(values)):
        return None
    return fmean(known)


def _pooled(validation: Validation, name: str, rows: float) -> float | None:
    values = [(of.get(name), of.get("n") or 0.0) for of in validation.values()]
    if not rows or any(value is None or not math.isfinite(value) for value, _ in values):
        return None
    return sum(value * n for value, n in values if value is not None) / rows
