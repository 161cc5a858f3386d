"""One finding of a diagnosis, and the diagnosis itself: numbers, verdicts and sentences; JSON both ways."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from farfield.diagnose.advice import conclusion, fitting, remedy
from farfield.errors import UserError
from farfield.models import ModelSpec
from farfield.tasks.task import TaskKind

Kind = Literal[
    "label shift", "feature shift", "concept shift", "gradient conflict", "near-duplicates", "domain leak", "label leak"
]
Verdict = Literal["alarm", "silent", "cannot say"]
KINDS: tuple[Kind, ...] = (
    "label shift",
    "feature shift",
    "concept shift",
    "gradient conflict",
    "near-duplicates",
    "domain leak",
    "label leak",
)
#: An alarm needs a result that chance gives at most this often.
LEVEL = 0.01
FORMAT = 1


class Finding(BaseModel):
    """One kind of shift or defect: its number, what chance gives, and whether that is an alarm."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    verdict: Verdict
    #: What `value` is, in a few words.
    measure: str
    #: None where nothing could be measured.
    value: float | None = None
    #: The mean of the same number where domains are drawn at random.
    chance: float | None = None
    #: How often chance gives a number at least as far out.
    p: float | None = None
    #: The number in a sentence, or why there is none.
    sentence: str
    meaning: str
    #: Methods that this finding speaks for; empty for a silent one.
    methods: tuple[str, ...] = ()
    #: What a picture needs: names and matrices.
    details: dict[str, Any] = {}

    @property
    def remedy(self) -> str:
        """The remedy for this finding, without a full stop."""
        return remedy(self.kind, self.methods)


class Diagnosis(BaseModel):
    """The differences between the domains of a task, before any training. They select nothing."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    task: str
    kind: TaskKind
    data: str
    domains: tuple[str, ...]
    rows: int
    #: What the features are that shift was measured on.
    features: str
    #: One per kind, in the order of `KINDS`.
    results: tuple[Finding, ...]
    #: What was sampled or left out.
    notes: tuple[str, ...] = ()
    seed: int = 0
    quick: bool = False

    def __getitem__(self, kind: str) -> Finding:
        for finding in self.results:
            if finding.kind == kind:
                return finding
        raise KeyError(f"there is no finding '{kind}'; choose one of {', '.join(KINDS)}")

    @property
    def alarms(self) -> tuple[str, ...]:
        """The kinds that ring."""
        return tuple(finding.kind for finding in self.results if finding.verdict == "alarm")

    def findings(self) -> tuple[str, ...]:
        """Return one sentence per finding, and the conclusion last."""
        lines = [f"{f.kind.capitalize()}: {f.verdict}. {f.sentence}" for f in self.results]
        return (*lines, self.conclusion)

    @property
    def conclusion(self) -> str:
        """The conclusion of all findings together, which also says when FedAvg is enough."""
        return conclusion({f.kind: f.verdict for f in self.results}, {f.kind: f.methods for f in self.results})

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON, with the sentences that a reader sees."""
        return {**json.loads(self.model_dump_json()), "conclusion": self.conclusion}

    @classmethod
    def from_json(cls, content: Any) -> Diagnosis:
        """Read a diagnosis back; one sentence if it is none."""
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise UserError(f"this is no diagnosis of format {FORMAT}: its format is {json.dumps(found, default=str)}")
        try:
            return cls.model_validate_json(json.dumps({k: v for k, v in content.items() if k != "conclusion"}))
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise UserError(f"this diagnosis is damaged at '{where}': {error.errors()[0]['msg']}") from error

    def __repr__(self) -> str:
        rings = ", ".join(self.alarms) or "no alarm"
        return f"Diagnosis({self.task!r}, {len(self.domains)} domains, {self.rows} rows: {rings})"


def chance_of(null: list[float], value: float, *, low: bool = False) -> float:
    """The share of random draws at least as far out, the value itself among them: never 0."""
    further = sum(draw <= value if low else draw >= value for draw in null)
    return (1 + further) / (1 + len(null))


def small(p: float, rings: bool) -> str:
    """Return the clause for a number that is beyond chance and still no alarm."""
    return " This is beyond chance, and too little for an alarm." if p <= LEVEL and not rings else ""


def with_fitting_methods(
    results: Iterable[Finding], task: TaskKind, spec: ModelSpec | None = None, domains: int = 2
) -> tuple[Finding, ...]:
    """The findings, with those methods only that can work with the task."""
    return tuple(
        f.model_copy(update={"methods": fitting(f.kind, task, spec, domains)}) if f.methods else f for f in results
    )


def cannot_say(kind: Kind, measure: str, reason: str, meaning: str, **details: Any) -> Finding:
    """A finding without a number."""
    return Finding(
        kind=kind, verdict="cannot say", measure=measure, sentence=reason, meaning=meaning, details=dict(details)
    )
