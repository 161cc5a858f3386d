"""The training settings that a task suggests, as far as a method can use them.

A default that a method cannot use (momentum under SCAFFOLD) is dropped for that method, with a note: nobody asked for
it. What a user sets is never dropped: it is refused, or the method is left out of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farfield.algorithms import AlgorithmError, FedAvg, build, params_of, parts
from farfield.runs.variants import Variant


def suited_defaults(name: str, defaults: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return those of a task's defaults that a method takes, and the reasons against those that it cannot use."""
    known, own = params_of(name).model_fields, _overridden(parts(name)[0])
    suited: dict[str, Any] = {}
    unusable: dict[str, str] = {}
    for key, value in defaults.items():
        if key not in known or key in own:
            continue
        try:
            build(name, {key: value})
            suited[key] = value
        except AlgorithmError as why:
            unusable[key] = str(why)
    return suited, unusable


def dropped_notes(
    variants: Iterable[Variant], defaults: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Say of each variant which of the task's defaults it goes without."""
    return tuple(
        f"{variant.label} goes without the task's own {key}={defaults[key]}: {why.partition('; ')[0]}"
        for variant in variants
        for key, why in suited_defaults(variant.method, defaults)[1].items()
        if key not in given[variant.label]
    )


def _overridden(client: type[FedAvg]) -> set[str]:
    """Parameters that a method sets its own default for, which a task's general one must not undo."""
    base = FedAvg.Params.model_fields
    return {n for n, f in client.Params.model_fields.items() if n in base and f.default != base[n].default}
