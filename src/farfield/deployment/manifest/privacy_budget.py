"""The privacy that a site's operator approves: what it costs, in words, and how much of it may be used up.

`privacy_text(algorithm, rounds, rows, validation)` is part of the manifest. `allowed_steps` and `Spent` are what the
site enforces: it stops answering a phase when all noised steps that were approved have been made, in however many runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from farfield.federation.refusal import Refused
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.checksums import DamagedFile

if TYPE_CHECKING:  # for annotations alone: these import torch
    from farfield.algorithms import FedAvg
    from farfield.deployment.manifest.manifest import Manifest

SPENT = "privacy-spent.json"


def privacy_text(algorithm: FedAvg, rounds: int, rows: int, validation: float | Literal["official"]) -> str:
    """Return what all approved rounds together cost and protect; empty where nothing is private."""
    from farfield.privacy.accountant import largest_epsilon
    from farfield.privacy.release import is_private, releases_of
    from farfield.privacy.statement import sentences

    if not is_private(algorithm):
        return ""
    share = 0.5 if validation == "official" else validation
    # How a share of the rows is rounded is for the split to say; fewer rows are drawn more often.
    most = max(2, rows - int(share * rows))
    counts = range(max(1, most - 2), most + 1)
    p = algorithm.params
    epsilon = largest_epsilon([releases_of(algorithm, rounds, count) for count in counts], p.delta)
    cost = {"level": p.privacy, "epsilon": epsilon, "delta": p.delta, "noise": p.noise, "clip": p.clip}
    first, *rest = sentences(cost)
    first = first.replace("; the largest over clients, by the PLD accountant", "; by the PLD accountant")
    return " ".join(
        [
            f"Differential privacy, if all {rounds} rounds are made: {first}",
            *rest,
            "The noise is drawn at this site from the operating system's generator. When the approved rounds are used "
            "up, in one run or in several, this site stops answering.",
        ]
    )


def allowed_steps(approved: Manifest, phase: str, round: int, rows: int) -> tuple[int, int | None]:
    """Return the noised steps of a phase in this round, and in all approved rounds; None for no limit.

    No step is noised where the manifest approves no privacy.
    """
    from farfield.algorithms import build
    from farfield.privacy.release import release_of

    algorithm = build(approved.algorithm, approved.settings, approved.rounds)
    now = release_of(algorithm, phase, round, rows)
    if now is None or approved.rounds is None:
        return (0 if now is None else now.steps), None
    each = (release_of(algorithm, phase, number, rows) for number in range(1, approved.rounds + 1))
    return now.steps, sum(release.steps for release in each if release is not None)


def mechanism(approved: Manifest) -> str:
    """Return a name for what the steps of an approval cost: its method and settings.

    Limits and the number of rounds are not in it: an approval that changes these goes on with the same count.
    """
    content = json.dumps([approved.algorithm, approved.settings], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


class Spent:
    """The noised steps that a site has made with each approved mechanism, in a file that outlives its processes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SPENT

    def spend(self, approved: Manifest, phase: str, round: int, rows: int) -> None:
        """Count the steps that are about to be made. Raises `Refused` if they are more than was approved."""
        steps, limit = allowed_steps(approved, phase, round, rows)
        if not steps:
            return
        # A site answers messages in processes of their own: two that count at the same time must not count as one.
        with self._alone():
            of_all = self._read()
            of = of_all.setdefault(mechanism(approved), {})
            if limit is not None and of.get(phase, 0) + steps > limit:
                raise Refused("privacy-spent", phase=phase, made=of.get(phase, 0), limit=limit)
            of[phase] = of.get(phase, 0) + steps
            write_checked_json(self._path, of_all)  # before anything leaves: a step that fails afterwards counts

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def note(self, approved: Manifest) -> str:
        """Return what an operator should know of steps that other approvals have cost; empty where there are none."""
        others = {name: of for name, of in self._read().items() if name != mechanism(approved)}
        steps = sum(sum(of.values()) for of in others.values())
        if not steps:
            return ""
        return (
            f"this site has made {steps} noised steps with other approved settings ({SPENT}); what they have cost is "
            "not in the ε above, and adds to it"
        )

    def _read(self) -> dict[str, dict[str, int]]:
        if not self._path.exists():
            return {}
        try:
            found = read_checked_json(self._path)
            return {str(name): {str(p): int(n) for p, n in of.items()} for name, of in found.items()}
        except (DamagedFile, ValueError, AttributeError, TypeError):
            # Going on would mean to count from zero again.
            raise Refused("privacy-count") from None
