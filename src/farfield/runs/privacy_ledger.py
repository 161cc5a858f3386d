"""The releases of a private run, on disk: written before clients are asked, never taken back.

A round that fails, is skipped or is made again after a crash has been released all the same, so its rows stay when the
other records go back to a checkpoint. On one machine a round that is made again has the same seed and so the same
noise: the same reply, which counts once. Across sites it has new noise and counts again.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield.algorithms import FedAvg
from farfield.privacy.accountant import check_installed, largest_epsilon
from farfield.privacy.release import Release, is_private, release_of
from farfield.records.atomic import append_row, read_rows, sync

PRIVACY = "privacy.jsonl"
#: So many clients have their releases listed in a result.
LISTED_CLIENTS = 100


class PrivacyLedger:
    """Counts what leaves each client of one run, and what that costs."""

    def __init__(self, folder: Path, algorithm: FedAvg, secure_noise: bool) -> None:
        check_installed()
        self._path, self._algorithm, self._secure = folder / PRIVACY, algorithm, secure_noise
        #: Which start of the run this is: with fresh noise a repeated round is another release.
        self._start = secrets.token_hex(4) if secure_noise else ""
        self._calls: dict[tuple[int, str], int] = {}
        self._rows: dict[int, int] = {}

    def asked(self, round: int, phase: str, clients: Sequence[int]) -> None:
        """Write down that clients are about to be asked for a phase."""
        if release_of(self._algorithm, phase, round, 1) is None:
            return
        call = self._calls[round, phase] = self._calls.get((round, phase), 0) + 1
        row = {"start": self._start, "round": round, "phase": phase, "call": call, "clients": list(clients)}
        append_row(self._path, row)
        if self._secure:
            sync(self._path)

    def learned(self, rows: Mapping[int, int]) -> None:
        """Write down how many training rows clients have, where that is new."""
        new = {client: count for client, count in rows.items() if self._rows.get(client) != count}
        if new:
            self._rows |= new
            append_row(self._path, {"rows": {str(client): count for client, count in new.items()}})

    def releases(self) -> dict[int, dict[Release, int]]:
        """Return what was released of each client whose number of rows is known, with how often."""
        asked: set[tuple[str, int, str, int, int]] = set()
        fewest: dict[int, int] = {}
        for row in read_rows(self._path):
            for client, count in row.get("rows", {}).items():
                fewest[int(client)] = min(int(count), fewest.get(int(client), int(count)))
            for client in row.get("clients", ()):
                asked.add((row["start"], row["round"], row["phase"], row["call"], client))
        found: dict[int, dict[Release, int]] = {}
        for _, round, phase, _, client in sorted(asked):
            release = release_of(self._algorithm, phase, round, fewest[client]) if client in fewest else None
            if release is not None:
                of = found.setdefault(client, {})
                of[release] = of.get(release, 0) + 1
        return found

    def summary(self) -> dict[str, Any]:
        """Return what the run has cost, as plain values."""
        p, found = self._algorithm.params, self.releases()
        epsilon = largest_epsilon(found.values(), p.delta)
        listed = {str(client): of for client, of in list(found.items())[:LISTED_CLIENTS]}
        return {
            "level": p.privacy,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": p.delta,
            "noise": p.noise,
            "clip": p.clip,
            "clients": len(found),
            "releases": {
                client: [
                    {"noise": release.noise, "rate": release.rate, "steps": release.steps, "times": times}
                    for release, times in sorted(of.items())
                ]
                for client, of in listed.items()
            },
        }


def open_ledger(folder: Path, algorithm: FedAvg, secure_noise: bool) -> PrivacyLedger | None:
    """Return the ledger of a run, or None where the method's settings ask for no privacy."""
    return PrivacyLedger(folder, algorithm, secure_noise) if is_private(algorithm) else None
