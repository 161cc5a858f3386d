"""What a private run protects, what it costs, and what it does not cover, in words. Nothing here claims more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What two neighbouring data sets differ in, by level. The number of rows and who takes part are the same in both.
ADJACENCY = {
    "record": "one training row of one client: its values, or nothing in their place",
    "client": "all that one client contributes: its uploads, or zeros in their place",
}
NOT_COVERED = {
    "record": (
        "not covered: the number of rows, the schema, the statistics by which columns are prepared, rows that are "
        "measured on (validation figures are withheld; held-out and evaluating sites tell theirs exactly), several "
        "rows of one person, and how long a phase takes or that it fails"
    ),
    "client": (
        "not covered: who takes part, the number of rows, the schema, the statistics by which columns are prepared, "
        "what held-out and evaluating sites measure, and how long a phase takes or that it fails"
    ),
}
#: δ is the chance that nothing is protected; from this share of a row on it is too much.
MOST_DELTA = 0.1
WITHHELD = "no loss and no validation figure leaves a client, so the last round is kept"


def epsilon_text(epsilon: float | None) -> str:
    """Return ε as it is printed, rounded up; None and infinity are no protection."""
    if epsilon is None or epsilon == float("inf"):
        return "ε is infinite: no protection"
    # Rounded up: what is printed must not be less than what was spent.
    shown = -(-epsilon * 1000 // 1) / 1000 if epsilon < 10 else -(-epsilon * 10 // 1) / 10
    return f"ε = {shown:g}"


def large_delta(delta: float, rows: int) -> str:
    """Return a sentence about a δ that is too large for so many rows; nothing if it is not."""
    if delta * rows < MOST_DELTA:
        return ""
    return f"delta = {delta:g} is not far below 1 / {rows} rows, so it promises little"


def cost_text(privacy: Mapping[str, Any]) -> str:
    """Return ε, δ and whom they are for, in a phrase."""
    whom = {"record": "each training row", "client": "each client"}[privacy["level"]]
    return f"{epsilon_text(privacy['epsilon'])} at δ = {privacy['delta']:g} for {whom}"


def sentences(privacy: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know of a private run."""
    level = privacy["level"]
    return [
        f"{cost_text(privacy)} (noise multiplier {privacy['noise']:g}, clip {privacy['clip']:g}; "
        "the largest over clients, by the PLD accountant).",
        f"Neighbouring data sets differ in {ADJACENCY[level]}.",
        f"Of this ε {NOT_COVERED[level]}.",
        f"{WITHHELD[0].upper()}{WITHHELD[1:]}.",
    ]
