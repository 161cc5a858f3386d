"""The trials of a tuning, read back from a bench's folder: for tables and pages, and for a tuning that goes on.

    tuning/LABEL/HELD-OUT/trials.jsonl      one row per trial
    tuning/LABEL/HELD-OUT/trial-0000/…      the runs of a trial, which measure source domains alone

A row has `number, algorithm, held_out` (null when all domains train), `settings` (the tuned ones), `default` (whether
these are the settings without tuning), `criterion` (the value that trials are compared by; null where there is none),
`metric, rule, round, validation` (metrics of the chosen round, each the mean over source domains), `domains` (the
criterion by source domain), `local_steps, seconds, state` ("complete", "diverged" or "failed") and `error`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farfield.records.atomic import read_rows
from farfield.records.shapes import is_trial

TUNING = "tuning"
TRIALS = "trials.jsonl"


def read_trials(bench: Path, label: str | None = None) -> list[dict[str, Any]]:
    """Return the trials in a bench's folder, of one variant or of all, ordered by variant, held-out domain and number.

    A bench without tuning has none. Of a trial that was recorded twice the later row counts.
    """
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for path in sorted((bench / TUNING).glob(f"*/*/{TRIALS}")):
        for row in read_rows(path):
            if is_trial(row) and (label is None or row["algorithm"] == label):
                found[row["algorithm"], row.get("held_out") or "", row["number"]] = row
    return [found[key] for key in sorted(found)]


def tuned_words(plan: dict[str, Any], label: str) -> str:
    """Say in few words where a variant's settings come from: "tuned (12 trials)", "as given" or "defaults"."""
    tuned = plan.get("tuned", {}).get(label)
    if tuned:
        return f"tuned ({tuned['trials']} trial{'' if tuned['trials'] == 1 else 's'})"
    own: dict[str, Any] = next((variant["settings"] for variant in plan["variants"] if variant["label"] == label), {})
    return "as given" if own else "defaults"
