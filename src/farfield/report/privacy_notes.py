"""What private variants of a bench cost and protect, for the notes of its tables and for its answer."""

from __future__ import annotations

from typing import Any

from farfield.privacy.statement import ADJACENCY, NOT_COVERED, WITHHELD, cost_text
from farfield.report.collect import Sweep
from farfield.report.formats import listed


def privacy_by_label(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Return the privacy of each private variant: of its runs, the one with the largest ε."""
    found: dict[str, dict[str, Any]] = {}
    for row in sweep.rows:
        privacy = row.get("privacy")
        if privacy:
            known = found.get(row["algorithm"])
            if known is None or _order(privacy) > _order(known):
                found[row["algorithm"]] = privacy
    return found


def _order(privacy: dict[str, Any]) -> float:
    return float("inf") if privacy["epsilon"] is None else float(privacy["epsilon"])


def privacy_notes(sweep: Sweep) -> list[str]:
    """Return what a reader of a table must know of private variants: ε of each, what it is for, what it leaves out."""
    found = privacy_by_label(sweep)
    notes = [
        f"{label}: {cost_text(of)}, by the accountant for one run (the largest over clients and runs); noise "
        f"multiplier {of['noise']:g}, clip {of['clip']:g}."
        for label, of in found.items()
    ]
    for level in dict.fromkeys(of["level"] for of in found.values()):
        notes.append(f"privacy={level}: neighbouring data sets differ in {ADJACENCY[level]}; {NOT_COVERED[level]}.")
    if found:
        notes.append(f"Of private variants {WITHHELD} under every rule but the oracle.")
    return notes


def privacy_answer(sweep: Sweep) -> list[str]:
    """Return one sentence on which variants are private, beside those that are not."""
    found = privacy_by_label(sweep)
    if not found:
        return []
    each = listed([f"{label} ({cost_text(of)})" for label, of in found.items()])
    others = [label for label in sweep.plan["algorithms"] if label not in found]
    rest = f"; {listed(others)} {'have' if len(others) > 1 else 'has'} none" if others else ""
    return [f"Differential privacy: {each}{rest}."]
