"""What is tuned and how: the part of a plan that decides every trial."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from farfield.algorithms import build, params_of
from farfield.algorithms.parameters import SearchRange, search_range
from farfield.protocol.selection import RULES
from farfield.runs.settings import PlanError
from farfield.runs.variants import Variant

#: What compares the trials of a method. Both look at source domains alone.
CRITERIA = ("source-validation", "leave-one-domain-out")
#: In place of names: every parameter that declares where a search looks.
ALL = "all"
#: Parameters that decide how many local steps a trial makes, which is the same for all trials of all methods.
DECIDE_STEPS = frozenset({"batch_size", "local_epochs", "schedule", "local_steps", "head_epochs"})


class Tuning(BaseModel):
    """A request to tune: `trials` settings per method and held-out domain, compared by `by`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: int
    by: str = CRITERIA[0]
    #: Restricts the search to these parameters; empty for what is tuned by default, "all" for all that have a range.
    only: tuple[str, ...] = ()
    #: The seed of the candidates and of the trials' runs.
    seed: int = 0
    #: The metric that leads, which decides the loss that trials are compared by; the plan fills it in.
    metric: str = ""
    #: The parameters that are tuned, by label.
    parameters: dict[str, tuple[str, ...]] = {}

    def beside(self, there: Mapping[str, Any]) -> Tuning:
        """Return this request with the methods that were tuned before, as a bench's file says it."""
        before = {label: tuple(names) for label, names in there.get("parameters", {}).items()}
        return self.model_copy(update={"parameters": {**before, **self.parameters}})


def read_request(
    trials: int | None, by: str | None = None, only: str | Sequence[str] | None = None, seed: int = 0
) -> Tuning | None:
    """Return what is asked for, None without a number of trials; refuse what cannot be, before any work."""
    if trials is None:
        given = [name for name, value in (("--tune-by", by), ("--tune-only", only)) if value]
        if given:
            raise PlanError(f"{given[0]} says how to tune; give the number of trials as well, as in --tune 10")
        return None
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise PlanError(f"tune = {trials!r}: give the number of trials per method, 1 or more; omit it for no tuning")
    rule = by or CRITERIA[0]
    if rule not in CRITERIA:
        if rule in RULES and RULES[rule].is_oracle:
            raise PlanError(f"tuning by '{rule}' would look at the held-out domain; use {' or '.join(CRITERIA)}")
        near = difflib.get_close_matches(rule, CRITERIA, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"use {' or '.join(CRITERIA)}"
        raise PlanError(f"settings cannot be tuned by '{rule}'; {hint}")
    names = tuple(dict.fromkeys([only] if isinstance(only, str) else only or ()))
    if only is not None and not names:
        raise PlanError("the list of parameters to tune is empty; omit it for the default")
    return Tuning(trials=trials, by=rule, only=names, seed=seed)


def with_parameters(
    request: Tuning,
    variants: Sequence[Variant],
    settings: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Iterable[str]],
    metric: str,
) -> Tuning:
    """Return the request with the parameters that are tuned for each variant; refuse one that tunes nothing.

    `settings` are the variants' full settings by label; `given` names what a user has set, which is not tuned unless
    `only` names it.
    """
    _check_names(request.only, variants)
    parameters = {}
    for variant in variants:
        space = search_space(variant.method, settings[variant.label], request.only)
        fixed = set(variant.settings) if request.only else set(given[variant.label])
        parameters[variant.label] = tuple(name for name in space if name not in fixed)
    if not any(parameters.values()):
        raise PlanError(
            "there is nothing to tune: every parameter that would be is set already; omit --tune, or name what to tune "
            "with --tune-only, whose first trial is the value that is set"
        )
    return request.model_copy(update={"parameters": parameters, "metric": request.metric or metric})


def search_space(method: str, settings: Mapping[str, Any], only: Sequence[str] = ()) -> dict[str, SearchRange]:
    """Return the parameters of a method that are tuned, each with its range.

    By default these are the step size and what the method itself declares on a continuous range: the weights of its
    terms, the step size of its server. Choices (a solver, a batch size) say what is computed; `only` adds them.
    """
    fields = params_of(method).model_fields
    common = params_of("fedavg").model_fields
    idle = build(method, settings).params.idle()
    space: dict[str, SearchRange] = {}
    for name, field in fields.items():
        where = search_range(field)
        if where is None or where.scale == "fixed" or name in idle or name in DECIDE_STEPS:
            continue
        if only:
            asked = name in only or tuple(only) == (ALL,)
        else:
            own = name == "lr" or name not in common or repr(field) != repr(common[name])
            asked = own and where.scale != "choices" and settings.get(name) is not None
        if asked:
            space[name] = where
    return space


def _check_names(only: Sequence[str], variants: Sequence[Variant]) -> None:
    if tuple(only) == (ALL,):
        return
    fields = {name: field for v in variants for name, field in params_of(v.method).model_fields.items()}
    for name in only:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(fields)}"
            raise PlanError(f"no method here has a parameter '{name}' to tune; {hint}")
        if name in DECIDE_STEPS:
            raise PlanError(
                f"{name} decides how many local steps a trial makes, and every trial makes the same; set one "
                f"with --set {name}=…, or compare several as variants, as in fedavg:{name}=…"
            )
        found = [search_range(f) for v in variants if (f := params_of(v.method).model_fields.get(name)) is not None]
        if all(where is None or where.scale == "fixed" for where in found):
            raise PlanError(f"the parameter '{name}' declares no range to search; set it with --set {name}=…")
