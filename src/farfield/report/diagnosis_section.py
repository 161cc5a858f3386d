"""How the domains differ, from the diagnosis beside a bench's runs: findings with their pictures, alarms first."""

from __future__ import annotations

from dataclasses import dataclass

from farfield.diagnose.figures import figure
from farfield.diagnose.finding import Diagnosis
from farfield.records.diagnosis_file import read_diagnosis
from farfield.report.collect import Sweep
from farfield.report.formats import public

#: Kinds that make held-out results doubtful, and not only harder.
_DOUBTFUL = ("near-duplicates", "domain leak", "label leak")


@dataclass(frozen=True)
class Shown:
    """One finding as the page shows it."""

    kind: str
    verdict: str
    sentence: str
    meaning: str
    svg: str | None


def diagnosis_of(sweep: Sweep) -> Diagnosis | None:
    """The diagnosis in the bench's folder, where it is one of the same data."""
    found = read_diagnosis(sweep.folder)
    same = found is not None and sweep.plan.get("data") in (None, found.data)
    return found if same else None


def findings_shown(diagnosis: Diagnosis) -> list[Shown]:
    """The findings, alarms first and in their own order otherwise."""
    ordered = sorted(diagnosis.results, key=lambda finding: finding.verdict != "alarm")
    return [
        Shown(f.kind, f.verdict, public(f.sentence), f.meaning, figure(f) if f.verdict != "cannot say" else None)
        for f in ordered
    ]


def diagnosis_doubts(sweep: Sweep) -> list[str]:
    """Alarms that make the result itself doubtful: leaks, and rows that stand in two domains."""
    found = diagnosis_of(sweep)
    if found is None:
        return []
    return [
        f"{finding.kind.capitalize()}: {public(finding.sentence)}"
        for finding in found.results
        if finding.verdict == "alarm" and finding.kind in _DOUBTFUL
    ]
