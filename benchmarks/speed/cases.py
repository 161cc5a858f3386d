"""The cases of the suite, in the order in which they are measured: the quick ones first."""

from __future__ import annotations

import difflib

from benchmarks.speed import (
    cross_device,
    default_bench,
    fediir_step,
    fedilc_round,
    fedomg_matching,
    heart_disease,
    image_reading,
    model_size,
    pacs_features,
    registered_clients,
    silo,
    tiny_clients,
    tuning_trials,
)
from benchmarks.speed.case import Case

CASES: tuple[Case, ...] = (
    tiny_clients.CASE,
    cross_device.CASE,
    silo.CASE,
    fediir_step.CASE,
    fedilc_round.CASE,
    fedomg_matching.CASE,
    registered_clients.CASE,
    model_size.CASE,
    image_reading.CASE,
    default_bench.CASE,
    heart_disease.CASE,
    tuning_trials.CASE,
    pacs_features.CASE,
)


def chosen(text: str) -> list[Case]:
    """Return the cases of names or letters with commas, or all."""
    if text == "all":
        return list(CASES)
    known = {**{case.letter: case for case in CASES if case.letter}, **{case.name: case for case in CASES}}
    found = []
    for name in (part.strip() for part in text.split(",")):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(case.name for case in CASES)}"
            raise ValueError(f"there is no case '{name}'; {hint}")
        found.append(known[name])
    return found
