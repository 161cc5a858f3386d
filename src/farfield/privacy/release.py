"""What leaves a client, as the accountant counts it: how often, with which noise, from which share of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from farfield.federation.phase import declared_phases, is_local_training
from farfield.privacy.record_level import sampling_rate, steps_in_round


class Method(Protocol):
    """What is asked of a method: its settings, its phases and its local epochs."""

    @property
    def params(self) -> Any: ...
    @property
    def phases(self) -> tuple[str, ...]: ...
    def epochs(self, round: int) -> int: ...


@dataclass(frozen=True, order=True)
class Release:
    """One phase at one client: `steps` Gaussian mechanisms of one noise multiplier, on rows drawn with one rate."""

    noise: float
    rate: float
    steps: int


def is_private(algorithm: Method) -> bool:
    """Return whether a method's settings ask for differential privacy."""
    return bool(algorithm.params.privacy != "none")


def uploading_phases(algorithm: Method) -> list[str]:
    """Return the phases of a round in which something noised leaves a client."""
    declared = declared_phases(algorithm)
    return [name for name in algorithm.phases if any(sends.in_privacy == "noise" for sends in declared[name].values())]


def release_of(algorithm: Method, phase: str, round: int, rows: int) -> Release | None:
    """Return what a phase releases of a client with so many training rows; None where nothing noised leaves."""
    p = algorithm.params
    if not is_private(algorithm) or phase not in uploading_phases(algorithm):
        return None
    if p.privacy == "client" or not is_local_training(getattr(algorithm, phase)):
        return Release(float(p.noise), 1.0, 1)
    steps = steps_in_round(p.local_steps, algorithm.epochs(round), p.batch_size, rows)
    return Release(float(p.noise), sampling_rate(p.batch_size, rows), steps)


def releases_of(algorithm: Method, rounds: int, rows: int) -> dict[Release, int]:
    """Return what a whole run of so many rounds releases of a client, with how often."""
    found: dict[Release, int] = {}
    for number in range(1, rounds + 1):
        for phase in algorithm.phases:
            release = release_of(algorithm, phase, number, rows)
            if release is not None:
                found[release] = found.get(release, 0) + 1
    return found
