"""The shapes of what is read back for a report: what each file and row must hold before anything is computed from it.

A file may be damaged, cut by a copy, or changed by hand, and older versions had no checksums. Whoever reads checks the
shape here, once, and can then rely on it. What a file says besides is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from farfield.records.errors import RecordsError

#: Figures beyond this are of a run that diverged: their squares and sums would not be finite.
LARGEST = 1e150

Text = Annotated[str, Field(max_length=100_000)]
Name = Annotated[str, Field(max_length=1_000)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Round = Annotated[int, Field(ge=0, le=10**9)]
#: Signed 64 bits.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Figure = float | int | None
Figures = Annotated[dict[Name, Figure], Field(max_length=500)]
Cost = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Settings = dict[Name, Any]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Variant(_Shape):
    label: Name
    method: Name
    settings: Settings = {}


class _Tuned(_Shape):
    trials: Count
    rule: Name
    best: dict[Name, Settings] = {}


class _Plan(_Shape):
    """The plan of a bench, as `bench.toml` has it in its newest format."""

    task: Name
    kind: Literal["classification", "regression"]
    variants: Annotated[list[_Variant], Field(min_length=1, max_length=10_000)]
    settings: dict[Name, Settings]
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=100_000)]
    held_out: Annotated[list[Name], Field(max_length=100_000)]
    rounds: Annotated[int, Field(ge=1, le=10**9)]
    rules: Annotated[list[Name], Field(min_length=1)]
    metric: Name
    metric_reason: Text = ""
    rounds_of: dict[Name, Round] = {}
    folds: dict[Name, list[Name]] = {}
    notes: list[Text] = []
    left_out: dict[Name, Text] = {}
    tuned: dict[Name, _Tuned] = {}
    tuning: Settings | None = None
    model: Settings = {}
    data: Name = ""
    baseline: Name | None = None
    augment: Name | None = None
    evaluate_every: Annotated[int, Field(ge=1, le=10**9)] = 1
    partition: Name | None = None
    clients: Count | None = None
    cohort: Count | None = None
    validation: float | Name | None = None


class _Config(_Shape):
    """The configuration of one run."""

    algorithm: Name
    seed: Seed
    held_out: Name | None = None
    group: list[Name] | None = None
    inner: Name | None = None
    data: Name = ""


class _Result(_Shape):
    """What came out of one run."""

    rounds: Round
    clients: Count = 0
    local_steps: Count = 0
    samples: Count = 0
    bytes_up: Count = 0
    bytes_down: Count = 0
    bytes_up_by_phase: dict[Name, Count] = {}
    bytes_down_by_phase: dict[Name, Count] = {}
    seconds: Cost = 0.0
    server_seconds: Cost = 0.0
    peak_memory_mb: Cost = 0.0
    events: Count = 0
    engine: Text = ""
    device: Text = ""
    precision: Name = ""
    method: Name = ""
    settings: Settings = {}
    model_sha256: Name = ""
    versions: dict[Name, Name] = {}
    unseen: dict[Name, dict[Name, Count]] = {}


class _Sent(_Shape):
    up: Count
    down: Count
    local_steps: Count


class _RoundRow(_Shape):
    """One round of a run."""

    round: Annotated[int, Field(ge=1, le=10**9)]
    clients: Count = 0
    loss: Figure = None
    diagnostics: Figures = {}
    validation: dict[Name, Figures] = {}
    sent: _Sent | None = None
    inner: Figures = {}
    inner_domains: dict[Name, Figures] = {}


class _EventRow(_Shape):
    """Something that happened in a run."""

    kind: Name
    round: Round
    message: Text
    client: Seed | None = None
    phase: Name | None = None
    detail: str | None = None


class _Trial(_Shape):
    """One trial of a tuning."""

    algorithm: Name
    number: Count
    held_out: Name | None = None
    settings: Settings = {}
    criterion: Figure = None
    metric: Name | None = None
    state: Name = ""


Bounded = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Numbers = Annotated[list[Bounded | None], Field(max_length=10_000)]


class _Bin(_Shape):
    rows: Count
    mean_score: Bounded | None
    share: Bounded | None


class _Calibration(_Shape):
    slope: Bounded | None = None
    intercept: Bounded | None = None
    bins: Annotated[list[_Bin], Field(max_length=1_000)] = []


class _Decision(_Shape):
    thresholds: Annotated[list[Bounded], Field(max_length=10_000)]
    net_benefit: Annotated[list[Bounded], Field(max_length=10_000)]
    treat_all: Annotated[list[Bounded], Field(max_length=10_000)]


class _Site(_Shape):
    """The figures of one held-out site in one round; see `farfield.protocol.site_figures`."""

    rows: Count
    events: Count | None = None
    classes: dict[Name, Count] = {}
    class_order: list[Name] = []
    unseen: dict[Name, Count] = {}
    auroc: dict[Name, Bounded | None] | None = None
    calibration: _Calibration | None = None
    brier: Bounded | None = None
    rmse: Bounded | None = None
    decision: _Decision | None = None
    confusion: Annotated[list[list[Count]], Field(max_length=1_000)] | None = None
    too_thin: Text | None = None
    refused: dict[Name, Text] = {}
    residuals: dict[Name, Numbers | Bounded | None] | None = None


class _Picture(_Shape):
    label: Name = ""
    png: str = ""


class _ExampleColumn(_Shape):
    name: Name
    kind: Name = ""
    shift: Bounded | None
    means: dict[Name, Bounded | None] = {}
    missing: dict[Name, Bounded] = {}


class _Examples(_Shape):
    """What the domains look like: pictures, or the columns that shift most."""

    kind: Name = ""
    domains: dict[Name, Annotated[list[_Picture], Field(max_length=1_000)]] = {}
    columns: Annotated[list[_ExampleColumn], Field(max_length=1_000)] = []


_SITE, _EXAMPLES = TypeAdapter(_Site), TypeAdapter(_Examples)
_PLAN, _CONFIG, _RESULT = TypeAdapter(_Plan), TypeAdapter(_Config), TypeAdapter(_Result)
_ROUND, _EVENT, _TRIAL = TypeAdapter(_RoundRow), TypeAdapter(_EventRow), TypeAdapter(_Trial)


def check_plan(plan: Mapping[str, Any], where: object) -> None:
    """Raise RecordsError for a plan that no bench has."""
    _check(_PLAN, plan, where)
    labels = [variant["label"] for variant in plan["variants"]]
    for what, names in (("variants", labels), ("held_out", plan["held_out"]), ("seeds", plan["seeds"])):
        if len(set(names)) < len(names):
            raise RecordsError(f"'{where}' is damaged: '{what}' names one of them twice")
    for label in labels:
        if label not in plan["settings"]:
            raise RecordsError(f"'{where}' is damaged: 'settings' has nothing for the variant '{label}'")
    for name, group in (plan.get("folds") or {}).items():
        if not group or not set(group) <= set(plan["held_out"]):
            raise RecordsError(f"'{where}' is damaged: the fold '{name}' names domains that are not held out")
    baseline = plan.get("baseline")
    if baseline is not None and baseline not in labels:
        raise RecordsError(f"'{where}' is damaged: its baseline '{baseline}' is none of its variants")


def check_config(config: Mapping[str, Any], where: object) -> None:
    """Raise RecordsError for a configuration that no run has."""
    _check(_CONFIG, config, where)


def check_result(result: Mapping[str, Any], where: object) -> None:
    """Raise RecordsError for a result that no run has."""
    _check(_RESULT, result, where)


def is_round_row(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of a run's rounds."""
    return _fits(_ROUND, row)


def is_event(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of a run's events."""
    return _fits(_EVENT, row)


def is_trial(row: Mapping[str, Any]) -> bool:
    """Whether a row is a trial of a tuning."""
    return _fits(_TRIAL, row)


def is_site(site: Any) -> bool:
    """Whether these are the figures of a site: what a page draws from them has the lengths that it needs."""
    if not isinstance(site, dict) or not _fits(_SITE, site):
        return False
    confusion, decision = site.get("confusion"), site.get("decision")
    if confusion and any(len(row) != len(confusion) for row in confusion):
        return False
    return not decision or len({len(decision[key]) for key in ("thresholds", "net_benefit", "treat_all")}) == 1


def are_examples(content: Mapping[str, Any]) -> bool:
    """Whether these are the examples of a bench's domains."""
    return _fits(_EXAMPLES, content)


def within_bounds(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures with None in place of what is not finite, or so large that nothing can be computed with it."""
    return {name: None if value is None or not abs(value) <= LARGEST else value for name, value in figures.items()}


def _check(shape: TypeAdapter[Any], content: Mapping[str, Any], where: object) -> None:
    try:
        shape.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"])
        raise RecordsError(f"'{where}' is damaged: '{place}': {first['msg'][0].lower()}{first['msg'][1:]}") from error


def _fits(shape: TypeAdapter[Any], row: Mapping[str, Any]) -> bool:
    try:
        shape.validate_python(row)
    except ValidationError:
        return False
    return True
