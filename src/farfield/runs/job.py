"""One run of a bench, and the folder that holds it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from farfield.records.tuning_trials import TUNING

LONGEST_NAME = 80


@dataclass(frozen=True)
class Job:
    """One run. `held_out` is None when every domain trains; `inner` is one more held out, for nested selection.

    `algorithm` is the label of a variant, under the name that records have for it.
    """

    algorithm: str
    held_out: str | None
    seed: int
    inner: str | None = None
    #: The number of a trial of the tuning; None for a run whose result counts.
    trial: int | None = None

    def folder(self, sweep: Path) -> Path:
        if self.trial is not None:
            path = study_folder(sweep, self.algorithm, self.held_out) / f"trial-{self.trial:04d}"
        else:
            assert self.held_out is not None
            path = sweep / "runs" / folder_name(self.algorithm, keep="+=") / folder_name(self.held_out)
        if self.inner is not None:
            path = path / f"inner-{folder_name(self.inner)}"
        return path / f"seed-{self.seed}"

    def __str__(self) -> str:
        held_out = " and ".join(d for d in (self.held_out, self.inner) if d is not None) or "nothing"
        trial = "" if self.trial is None else f", trial {self.trial}"
        return f"{self.algorithm}{trial}, {held_out} held out, seed {self.seed}"


def folder_name(name: str, keep: str = "") -> str:
    """Return a domain's name or a label as one path part that any file system takes; `keep` stays unquoted."""
    quoted = quote(name, safe=f" {keep}")
    if name.startswith("."):
        quoted = quoted.replace(".", "%2E")
    if not quoted or len(quoted) > LONGEST_NAME:
        quoted = f"{quoted[:LONGEST_NAME]}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return quoted


def study_folder(sweep: Path, label: str, held_out: str | None) -> Path:
    """Return the folder of a variant's trials for one held-out domain; None is a tuning in which all domains train."""
    # No domain can have this name: folder_name quotes a plus sign.
    domain = "+all-train" if held_out is None else folder_name(held_out)
    return sweep / TUNING / folder_name(label, keep="+=") / domain
