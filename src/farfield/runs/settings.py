"""Settings: what a user, a task and a method say, put together into what each run is made with."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from pydantic import ValidationError

from farfield.algorithms import AlgorithmError, build, params_of, parts
from farfield.algorithms.registry import check_parameter
from farfield.errors import UserError
from farfield.models import BACKBONES, ModelSpec, build_model, is_backbone, native_shape, pin
from farfield.runs.task_defaults import suited_defaults
from farfield.runs.variants import AnyVariant, Variant, check_distinct, read_values, read_variants
from farfield.tasks.augment import AUGMENTATIONS, NONE
from farfield.tasks.clients.validation import OFFICIAL
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Task


class PlanError(UserError):
    """A bench that cannot be done as asked, in one sentence."""


@dataclass(frozen=True)
class SortedSettings:
    """Settings by what they are for: the model, and each variant by its label."""

    model: dict[str, Any]
    #: All that was set for each variant.
    given: dict[str, dict[str, Any]]
    #: What was set for one variant alone: its own settings, and those given by its label.
    own: dict[str, dict[str, Any]]
    #: Settings that others win over in every variant, each with the reason.
    beaten: dict[str, str]


class _Level(IntEnum):
    """Whom a setting is for; of two settings for one parameter the higher level wins."""

    ALL = 0
    METHOD = 1
    LABEL = 2
    OWN = 3


@dataclass(frozen=True)
class _Setting:
    level: _Level
    key: str
    value: Any


def sort_settings(settings: Mapping[str, Any], algorithms: AnyVariant | Iterable[AnyVariant]) -> SortedSettings:
    """Split settings into those of the model and, by label, those of each variant.

    `lr` is for every variant, `fedprox.mu` for those of a method, `weak.mu` for the one of that label; each wins over
    the one before, and a variant's own settings win over all. A setting that is for nothing is refused.
    """
    variants = read_variants(algorithms)
    model: dict[str, Any] = {}
    by_label: dict[str, dict[str, _Setting]] = {
        v.label: {key: _Setting(_Level.OWN, "", value) for key, value in v.settings.items()} for v in variants
    }
    concerned_by: dict[str, list[Variant]] = {}
    for key, value in settings.items():
        owner, _, field = key.rpartition(".")
        if owner == "model":
            model[field] = value
            continue
        concerned_by[key] = _concerned(key, variants)
        for variant in concerned_by[key]:
            level = _Level.ALL if not owner else _Level.LABEL if owner == variant.label else _Level.METHOD
            read = read_values(variant.method, {field: value})[field]
            before = by_label[variant.label].get(field)
            if before is None or before.level <= level:
                by_label[variant.label][field] = _Setting(level, key, read)
    given = {label: {field: s.value for field, s in of.items()} for label, of in by_label.items()}
    check_distinct(variants, given)
    return SortedSettings(
        model=model,
        given=given,
        own={v.label: {f: s.value for f, s in by_label[v.label].items() if _is_own(s, v)} for v in variants},
        beaten={key: why for key, of in concerned_by.items() if (why := _beaten(key, of, by_label))},
    )


def _concerned(key: str, variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants that a setting is for; refuse one that is for none."""
    owner, _, field = key.rpartition(".")
    if owner:
        concerned = [variant for variant in variants if variant.concerns(owner)]
        if not concerned:
            raise PlanError(_for_nobody(key, owner, variants))
        for variant in concerned:
            check_parameter(field, params_of(variant.method), variant.method)
        return concerned
    fields = {variant.label: params_of(variant.method).model_fields for variant in variants}
    having = [variant for variant in variants if key in fields[variant.label]]
    if having:
        return having
    methods = list(dict.fromkeys(variant.method for variant in variants))
    if len(methods) == 1:
        check_parameter(key, params_of(methods[0]), methods[0])
    if ":" in key:
        raise PlanError(_for_nobody(key, key.partition("=")[0], variants))
    known = list(dict.fromkeys(name for of in fields.values() for name in of))
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"they have {', '.join(known)}"
    raise PlanError(f"{', '.join(methods[:-1])} and {methods[-1]} have no parameter '{key}'; {hint}")


def _for_nobody(key: str, owner: str, variants: Sequence[Variant]) -> str:
    if ":" in owner:
        return (
            f"'{key}': a setting is for a method or for a label that you typed, so give the variant a label "
            "(-a weak=fedprox:mu=0.001) and set it by that (--set weak.lr=0.05)"
        )
    known = list(dict.fromkeys(name for v in variants for name in (v.label, v.method, *v.method.split("+"))))
    near = difflib.get_close_matches(owner, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    labels = ", ".join(variant.label for variant in variants)
    return f"'{key}' is for '{owner}', which is not among the algorithms {labels}{hint}"


def _is_own(setting: _Setting, variant: Variant) -> bool:
    """Whether a setting is for one variant alone. A label that is a method's name stands for the method."""
    return setting.level is _Level.OWN or (setting.level is _Level.LABEL and variant.label != variant.method)


def _beaten(key: str, concerned: Sequence[Variant], by_label: Mapping[str, Mapping[str, _Setting]]) -> str:
    """Say what wins over a setting in every variant that it is for; empty if the setting has an effect."""
    winners = [by_label[variant.label][key.rpartition(".")[2]] for variant in concerned]
    if any(winner.key == key for winner in winners):
        return ""
    keys = list(dict.fromkeys(winner.key for winner in winners if winner.key))
    if not keys:
        return "every variant sets its own"
    others = " and ".join([*keys, *["the variants' own settings"] * any(not winner.key for winner in winners)])
    return f"{others} {'wins' if others == keys[0] else 'win'} over it"


def check_settings(settings: Mapping[str, Any], variants: Sequence[Variant]) -> None:
    """Refuse settings that no data can make right, before any data is read. Raises UserError, one sentence."""
    settings = dict(settings)
    check_augment(settings.pop("augment", None))
    found = sort_settings(settings, variants)
    for variant in variants:
        try:
            build(variant.method, found.given[variant.label])
        except AlgorithmError as error:
            # A value that is wrong stays wrong. Values that do not go together may, with the task's own beside them.
            if isinstance(error.__cause__, ValidationError) and error.__cause__.errors()[0]["loc"]:
                raise
    check_model(found.model)


def check_model(settings: Mapping[str, Any]) -> None:
    """Refuse settings that no model has, and values that no model can have; the data's sizes may refuse more."""
    for key in settings:
        if key not in ModelSpec.model_fields:
            known = [f for f in ModelSpec.model_fields if f not in ("input_shape", "outputs")]
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean 'model.{near[0]}'?" if near else f"it has {', '.join(known)}"
            raise PlanError(f"a model has no setting '{key}'; {hint}")
    try:
        ModelSpec.model_validate({"input_shape": (1,), "outputs": 1, **settings})
    except ValidationError as error:
        raise _model_error(error) from error


def _model_error(error: ValidationError) -> PlanError:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if not first["loc"]:
        return PlanError(f"model: {message}")
    return PlanError(f"model.{'.'.join(map(str, first['loc']))} = {first['input']!r}: {message}")


def resolve(name: str, defaults: Mapping[str, Any], settings: Mapping[str, Any], by_epochs: bool) -> dict[str, Any]:
    """A method's parameters in full: its defaults, the task's, the user's, each winning over the one before."""
    suited, _ = suited_defaults(name, defaults)
    if by_epochs or not {"local_epochs", "schedule"}.isdisjoint(settings):
        # A number of steps wins over epochs, and the task's own must not win over the user's epochs.
        suited.pop("local_steps", None)
    return build(name, {**suited, **settings}).params.model_dump(mode="json")


def schedule(communications: int | Sequence[int], budget: int) -> tuple[int, ...]:
    """Local epochs of each round: `budget` epochs in as many rounds, as evenly as whole epochs allow, or as listed.

    `schedule(3, 8)` is (2, 3, 3); `schedule([2, 8], …)` synchronises after epochs 2 and 8, so it is (2, 6).
    """
    if isinstance(communications, int):
        if not 1 <= communications <= budget:
            raise PlanError(
                f"communications = {communications}: there can be 1 to {budget}, one per epoch, in a budget of "
                f"{budget} local epochs (rounds × local_epochs)"
            )
        points = [budget * number // communications for number in range(1, communications + 1)]
    else:
        points = list(communications)
    lengths = tuple(after - before for before, after in zip([0, *points], points, strict=False))
    if not lengths or min(lengths) < 1:
        raise PlanError(f"communications must be epochs from 1 on, each after the one before, not {points}")
    return lengths


def synchronise(
    communications: int | Sequence[int],
    rounds: int,
    variants: Sequence[Variant],
    settings: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Mapping[str, Any]],
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the number of rounds, and each variant's settings with its schedule, if it trains in local epochs."""
    listed = not isinstance(communications, int)
    scheduled: dict[str, dict[str, Any]] = {}
    for variant in variants:
        name, values = variant.label, settings[variant.label]
        scheduled[name] = dict(values)
        if "train" not in parts(variant.method)[0].phases:
            continue
        for other in ("schedule", "local_steps", *(["local_epochs"] if listed else [])):
            if given[name].get(other) is not None or (values.get(other) is not None and other == "local_steps"):
                raise PlanError(f"communications decide the local epochs of a round, and so does {name}'s {other}")
        scheduled[name]["schedule"] = list(schedule(communications, rounds * values["local_epochs"]))
    if isinstance(communications, int):
        return positive("communications", communications), scheduled
    return len(schedule(communications, 0)), scheduled


def model_spec(task: Task | TaskOutline, settings: Mapping[str, Any]) -> ModelSpec:
    check_model(settings)
    try:
        return pin(ModelSpec(**{**task.model.model_dump(), **settings}), BACKBONES)
    except ValidationError as error:
        raise _model_error(error) from error


def check_weights(settings: Mapping[str, Any] | None) -> None:
    """Refuse a backbone whose weights are not here or do not fit it, before a million images are decoded for it."""
    name = (settings or {}).get("model.featurizer")
    weights = (settings or {}).get("model.weights", "auto")
    if not isinstance(name, str) or not is_backbone(name) or not isinstance(weights, str):
        return
    # Size and norm play no part in which file is taken: those of the plan are checked with the plan.
    shape = native_shape(name)
    spec = pin(ModelSpec(featurizer=name, input_shape=shape, outputs=1, norm="freeze", weights=weights), BACKBONES)
    if weights != "none":
        build_model(spec, seed=0)


def check_augment(asked: Any) -> None:
    """Refuse an augmentation that does not exist. None leaves it to the task."""
    choices = (NONE, *AUGMENTATIONS)
    if asked is not None and asked not in choices:
        raise PlanError(f"augment = {asked!r}: choose one of {', '.join(choices)}")


def augmentation(task: Task | TaskOutline, asked: Any) -> str:
    """What is done to training batches: what the user says, else what suits the task."""
    check_augment(asked)
    augment = task.defaults.get("augment", NONE) if asked is None else asked
    shape = task.model.input_shape
    if augment != NONE and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise PlanError(
            f"augment={augment} is for images of 1 or 3 channels; those of task '{task.name}' have shape {shape}"
        )
    return str(augment)


def local_epochs_in_all(communications: int | Sequence[int] | None, rounds: int) -> Callable[[Any], int]:
    """How many local epochs a method with these parameters makes in all, however they are cut into rounds."""
    if communications is None:

        def epochs(p: Any) -> int:
            each = p.schedule or (p.local_epochs,)
            return sum(each[min(number, len(each) - 1)] for number in range(rounds))

        return epochs
    if isinstance(communications, int):
        return lambda p: rounds * p.local_epochs
    return lambda p: max(communications)


def name_list(what: str, given: Any) -> list[str] | None:
    """Return names as a list; a single text is one name, and None stays None."""
    if given is None or isinstance(given, str):
        return given if given is None else [given]
    names = list(given) if isinstance(given, Iterable) else [given]
    other = next((name for name in names if not isinstance(name, str)), None)
    if other is not None:
        raise PlanError(f"{what} takes names, which are texts, and {other!r} is none; give '{other}'")
    return names


def group_list(what: str, given: Any) -> list[str | tuple[str, ...]] | None:
    """Return names, and groups of names as tuples, in a list; a single text is one name, and None stays None."""
    if given is None or isinstance(given, str) or not isinstance(given, Iterable):
        return None if given is None else [*(name_list(what, given) or ())]
    entries: list[str | tuple[str, ...]] = []
    for entry in given:
        together = isinstance(entry, list | tuple)
        names = name_list(what, entry if together else [entry]) or []
        entries += [tuple(names)] if together else names
    return entries


def seed_numbers(seeds: int | Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(range(positive("seeds", seeds))) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
    if not chosen or min(chosen) < 0:
        raise PlanError(f"seeds must be one or more numbers from 0 on, not {list(chosen)}")
    return chosen


def positive(name: str, value: Any) -> Any:
    if not value > 0 or not math.isfinite(value):
        raise PlanError(f"{name} must be over 0, not {value}")
    return value


def validation_share(value: float | str) -> float | Literal["official"]:
    if value == OFFICIAL:
        return OFFICIAL
    try:
        return float(value)
    except ValueError:
        raise PlanError(f"validation = '{value}': give a share such as 0.1, or '{OFFICIAL}'") from None


def share(name: str, value: float) -> float:
    if not 0 < value <= 1:
        raise PlanError(f"{name} must be over 0 and at most 1, not {value}")
    return value
