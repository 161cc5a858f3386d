"""A share of a bench: several processes on one folder, each with its part of the runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from farfield.runs.job import Job
from farfield.runs.settings import PlanError

_SHARE = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True)
class Share:
    """Part `number` of `of`, from 1 on."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def deal(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of this share in their order. The deal depends on which jobs there are and on nothing else.

        Neither does it depend on their order: two shares may be given the same methods in another one. Methods are
        dealt one after the other, so that every share has as many runs of each, or one more: the runs of one method
        take about the same time, and those of another may take ten times as long.
        """
        dealt = set(sorted(jobs, key=_place)[self.number - 1 :: self.of])
        return [job for job in jobs if job in dealt]


def _place(job: Job) -> tuple[str, int, str, str]:
    return job.algorithm, job.seed, job.held_out or "", job.inner or ""


def read_share(text: str | None) -> Share | None:
    """Read "K/N"; None for None."""
    if text is None:
        return None
    found = _SHARE.fullmatch(text.strip())
    share = None if found is None else Share(int(found[1]), int(found[2]))
    if share is None or not 1 <= share.number <= share.of:
        raise PlanError(f"'{text}' is not a share; give K/N with K from 1 to N, such as 1/4 for the first of four")
    return share


def check_share(share: Share | None, **conflicts: bool) -> None:
    """Refuse what does not go with a share, before any data is read. A keyword says whether an option is given."""
    if share is None:
        return
    reasons = {
        "without_out": "a share needs --out, the folder that all shares write to",
        "fresh": "a share goes on with what the other shares have made; omit --fresh, and remove the folder by hand "
        "before the first share is started",
        "on": "a cluster deals out the runs by itself; give --on or --share, not both",
        "tune": "the trials of a tuning build on each other and cannot be dealt out; tune in one process, or on a "
        "cluster with --on ray",
        "sweep": "--share deals out the runs of one bench; give each point of the sweep a bench of its own, or use "
        "--on ray",
        "callbacks": "trackers and callbacks have one writer and cannot follow several shares; omit --track",
    }
    for name, given in conflicts.items():
        if given:
            raise PlanError(reasons[name])
