"""Refuse whatever a server asks for beyond the manifest that a site's operator has approved.

    check_proposal(approved, settings=…, rounds=…)                        # before the site joins
    check_seed_and_model(approved, seed, model)                           # before anything is built of them
    check_data(approved, data)                                            # what comes with a run besides
    check_phase(approved, algorithm=…, settings=…, rounds=…, phase=…)     # before each phase

The site compares with its own copy of the method, because that is what runs: a server sends names, never code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from farfield.deployment.manifest.entries import Entry, phase_entries
from farfield.deployment.manifest.manifest import Manifest, without_sizes
from farfield.federation.refusal import Refused

_NO_PATH = re.compile(r"[A-Za-z0-9_-]+|[A-Za-z0-9_][A-Za-z0-9_.-]*@sha256:[0-9a-f]{64}")


def check_phase(approved: Manifest, *, algorithm: str, settings: Mapping[str, Any], rounds: int, phase: str) -> None:
    """Raise `Refused` unless everything that the phase may send, by this site's own code, was approved."""
    _check_run(approved, algorithm, settings, rounds)
    _check_outputs(approved, algorithm, phase)


def check_proposal(approved: Manifest, settings: Mapping[str, Any], rounds: int | None) -> None:
    """Raise `Refused` if the server proposes other settings or more rounds than were approved."""
    if rounds is not None and approved.rounds is not None and rounds > approved.rounds:
        raise Refused("rounds", approved=approved.rounds, asked=int(rounds))
    for key, value in settings.items():
        if key in approved.settings and approved.settings[key] != value:
            raise _other_setting(key, approved.settings[key], value)


def check_seed_and_model(approved: Manifest, seed: int, model: Mapping[str, Any] | None = None) -> None:
    """Raise `Refused` for another seed or another kind of model than was approved."""
    if seed != approved.seed:
        raise Refused("seed", approved=approved.seed, asked=seed)
    if model is None or approved.model is None:
        return
    for key, value in without_sizes(model).items():
        # The server decides what 'auto' means, as long as it gives no path: a name is looked for in the folders of
        # weights alone, and what is found there must have the hash.
        chosen = key == "weights" and approved.model.get(key) == "auto" and _NO_PATH.fullmatch(str(value))
        if approved.model.get(key) != value and not chosen:
            raise Refused("model", key=key)


def check_data(approved: Manifest, data: Mapping[str, Any]) -> None:
    """Raise `Refused` for anything else than the schema, its preparation and the approved augmentation."""
    for key in data:
        if key not in ("schema", "fitted", "augment"):
            raise Refused("assignment", key=str(key))
    if data.get("augment", "none") != approved.augment:
        raise Refused("augment", approved=approved.augment)


def _check_run(approved: Manifest, algorithm: str, settings: Mapping[str, Any], rounds: int) -> None:
    """Refuse a run that asks for anything beyond the approval."""
    from farfield.algorithms import AlgorithmError, build

    if algorithm != approved.algorithm:
        raise Refused("algorithm", approved=approved.algorithm)
    if approved.rounds is not None and rounds > approved.rounds:
        raise Refused("rounds", approved=approved.rounds, asked=rounds)
    try:
        wanted = build(algorithm, settings, rounds).params.model_dump(mode="json")
    except AlgorithmError as error:
        raise Refused("cannot-do") from error
    for key, value in wanted.items():
        known = approved.settings.get(key)
        if key not in approved.settings or known != value:
            raise _other_setting(key, known, value)


def _other_setting(key: str, approved: Any, asked: Any) -> Refused:
    if all(value is None or isinstance(value, bool | int | float) for value in (approved, asked)):
        return Refused("setting-value", key=key, approved=approved, asked=asked)
    return Refused("setting", key=key)


def _check_outputs(approved: Manifest, algorithm: str, phase: str) -> None:
    """Refuse a phase that would send anything beyond the approval."""
    from farfield.algorithms import build
    from farfield.federation.phase import declared_phases

    declared = declared_phases(build(algorithm, approved.settings)).get(phase)
    if declared is None:
        raise Refused("phase-unknown", algorithm=algorithm)
    agreed = {entry.name: entry.without_numbers for entry in approved.entries if entry.exchange == phase}
    if not agreed:
        raise Refused("phase", phase=phase)
    for entry in phase_entries(phase, declared, None):
        before, now = agreed.get(entry.name), entry.without_numbers
        if before is None:
            raise Refused("output", name=entry.name, phase=phase, algorithm=algorithm)
        if before != now:
            raise Refused("output-changed", name=entry.name, phase=phase, key=_changed(before, now))


def _changed(before: Entry, after: Entry) -> str:
    old, new = before.model_dump(), after.model_dump()
    return next(key for key in new if old[key] != new[key])
