"""How much of a bench is there: the same words wherever an unfinished one is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from farfield.report.formats import plural


@dataclass(frozen=True)
class Completeness:
    """Runs and held-out domains of a bench, and how many of them are there."""

    #: Runs that were asked for, that have a result, and that failed or stopped halfway.
    runs: int
    done: int
    failed: int
    #: Held-out domains that were asked for, and those on which every variant has a result for every seed.
    domains: int
    domains_done: int
    #: Held-out domains with a result of any variant.
    domains_begun: int

    @property
    def missing(self) -> int:
        """Runs that never started."""
        return self.runs - self.done - self.failed

    @property
    def finished(self) -> bool:
        return self.done == self.runs

    @property
    def sentence(self) -> str:
        """What a reader of an unfinished bench must know; empty for a finished one."""
        if self.finished:
            return ""
        failed = f", {self.failed:,} failed or stopped halfway" if self.failed else ""
        return (
            f"{self.done:,} of {plural(self.runs, 'run')} {_are(self.runs)} done{failed}; {self.domains_done:,} of "
            f"{plural(self.domains, 'held-out domain')} {_are(self.domains)} complete: read this as provisional."
        )


def completeness(
    plan: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], failures: Iterable[Mapping[str, Any]]
) -> Completeness:
    """Count what a bench has against what its plan asks for. A run that holds out several domains counts once."""
    rows = list(rows)
    folds: Mapping[str, Any] = plan.get("folds") or {name: [name] for name in plan["held_out"]}
    done = {_run(row) for row in rows}
    failed = {_run(failure) for failure in failures} - done
    of_domain: dict[str, int] = {}
    for row in rows:
        of_domain[row["held_out"]] = of_domain.get(row["held_out"], 0) + 1
    each = len(plan["algorithms"]) * len(plan["seeds"])
    return Completeness(
        runs=each * len(folds),
        done=len(done),
        failed=len(failed),
        domains=len(plan["held_out"]),
        domains_done=sum(of_domain.get(name, 0) >= each for name in plan["held_out"]),
        domains_begun=len(of_domain),
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _run(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["algorithm"], row.get("fold") or row["held_out"], row["seed"]
