"""Refuse whatever a server asks for beyond the manifest that a site's operator has approved.

    check_proposal(approved, settings=…, rounds=…)                        # before the site joins
    check_seed_and_model(approved, seed, model)                           # before anything is built of them
    check_phase(approved, algorithm=…, settings=…, rounds=…, phase=…)     # before each phase

The site compares with its own copy of the method, because that is what runs: a server sends names, never code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from farfield.deployment.manifest.entries import Entry, phase_entries
from farfield.deployment.manifest.manifest import Manifest, without_sizes
from farfield.federation.refusal import Refused


def check_phase(approved: Manifest, *, algorithm: str, settings: Mapping[str, Any], rounds: int, phase: str) -> None:
    """Raise `Refused` unless everything that the phase may send, by this site's own code, was approved."""
    beyond = _run_beyond(approved, algorithm, settings, rounds) or _phase_beyond(approved, algorithm, phase)
    if beyond is not None:
        raise Refused(beyond)


def check_proposal(approved: Manifest, settings: Mapping[str, Any], rounds: int | None) -> None:
    """Raise `Refused` if the server proposes other settings or more rounds than were approved."""
    prefix = _has_approved(approved)
    if rounds is not None and approved.rounds is not None and rounds > approved.rounds:
        raise Refused(f"{prefix} {approved.rounds} rounds, and the server asks for {rounds}")
    for key, value in settings.items():
        if key in approved.settings and approved.settings[key] != value:
            raise Refused(
                f"{prefix} {key} = {json.dumps(approved.settings[key])}, and the server asks for {json.dumps(value)}"
            )


def check_seed_and_model(approved: Manifest, seed: int, model: Mapping[str, Any] | None = None) -> None:
    """Raise `Refused` for another seed or another kind of model than was approved."""
    prefix = _has_approved(approved)
    if seed != approved.seed:
        raise Refused(f"{prefix} the seed {approved.seed}, and the server asks for {seed}")
    if model is None or approved.model is None:
        return
    for key, value in without_sizes(model).items():
        # The server decides what 'auto' means, as long as it names no file of this machine.
        chosen = key == "weights" and approved.model.get(key) == "auto" and re.fullmatch(r"[A-Za-z0-9_-]+", str(value))
        if approved.model.get(key) != value and not chosen:
            known = json.dumps(approved.model.get(key))
            raise Refused(f"{prefix} model.{key} = {known}, and the server asks for {json.dumps(value)}")


def _run_beyond(approved: Manifest, algorithm: str, settings: Mapping[str, Any], rounds: int) -> str | None:
    """Return what a run asks for beyond the approval, in one sentence; None if nothing."""
    from farfield.algorithms import AlgorithmError, build

    prefix = _has_approved(approved)
    if algorithm != approved.algorithm:
        return f"{prefix} '{approved.algorithm}', and the server asks for '{algorithm}'"
    if approved.rounds is not None and rounds > approved.rounds:
        return f"{prefix} {approved.rounds} rounds, and the server asks for {rounds}"
    try:
        wanted = build(algorithm, settings, rounds).params.model_dump(mode="json")
    except AlgorithmError as error:
        return f"the server asks for what this site's version cannot do: {error}"
    for key, value in wanted.items():
        known = approved.settings.get(key)
        if key not in approved.settings or known != value:
            return f"{prefix} {key} = {json.dumps(known)}, and the server asks for {json.dumps(value)}"
    return None


def _phase_beyond(approved: Manifest, algorithm: str, phase: str) -> str | None:
    """Return what a phase would send beyond the approval, in one sentence; None if nothing."""
    from farfield.algorithms import build
    from farfield.federation.phase import declared_phases

    prefix = _has_approved(approved)
    declared = declared_phases(build(algorithm, approved.settings)).get(phase)
    if declared is None:
        return f"the server asks for a phase '{phase}', which {algorithm} does not have in this site's version"
    agreed = {entry.name: entry.without_numbers for entry in approved.entries if entry.exchange == phase}
    if not agreed:
        return f"{prefix} no phase '{phase}', and the server asks for it"
    for entry in phase_entries(phase, declared, None):
        before, now = agreed.get(entry.name), entry.without_numbers
        if before is None:
            return f"{prefix} no '{entry.name}' in phase '{phase}', which {algorithm} would send"
        if before != now:
            return f"'{entry.name}' in phase '{phase}' is not what this site has approved: {_change(before, now)}"
    return None


def _has_approved(approved: Manifest) -> str:
    return f"in '{approved.federation}' this site has approved"


def _change(before: Entry, after: Entry) -> str:
    old, new = before.model_dump(), after.model_dump()
    return "; ".join(f"{key} was {old[key]!r} and is {new[key]!r}" for key in new if old[key] != new[key])
