"""Settings: what a user, a task and a method say, put together into what each run is made with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from farfield.algorithms import FedAvg, build, params_of, parts
from farfield.algorithms.registry import check_parameter
from farfield.errors import UserError
from farfield.models import BACKBONES, ModelSpec, build_model, pin
from farfield.runs.variants import AnyVariant, Variant, check_distinct, read_variants
from farfield.tasks.augment import AUGMENTATIONS, NONE
from farfield.tasks.clients.validation import OFFICIAL
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Task


class PlanError(UserError):
    """A bench that cannot be done as asked, in one sentence."""


def sort_settings(
    settings: Mapping[str, Any], algorithms: AnyVariant | Iterable[AnyVariant]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split settings into those of the model and, by label, all that was set for each variant.

    `lr` is for every variant, `fedprox.mu` for those of a method, `weak.mu` for the one of that label; each wins over
    the one before, and a variant's own settings win over all. A setting that is for nothing is refused.
    """
    variants = read_variants(algorithms)
    model: dict[str, Any] = {}
    for_all: dict[str, dict[str, Any]] = {variant.label: {} for variant in variants}
    for_method: dict[str, dict[str, Any]] = {variant.label: {} for variant in variants}
    for_label: dict[str, dict[str, Any]] = {variant.label: {} for variant in variants}
    for key, value in settings.items():
        owner, _, field = key.rpartition(".")
        if owner == "model":
            model[field] = value
        elif owner:
            concerned = [variant for variant in variants if variant.concerns(owner)]
            if not concerned:
                labels = ", ".join(variant.label for variant in variants)
                raise PlanError(f"'{key}' is for '{owner}', which is not among the algorithms {labels}")
            for variant in concerned:
                check_parameter(field, params_of(variant.method), variant.method)
                (for_label if owner == variant.label else for_method)[variant.label][field] = value
        else:
            having = [variant for variant in variants if key in params_of(variant.method).model_fields]
            if not having:
                methods = dict.fromkeys(variant.method for variant in variants)
                check_parameter(key, params_of(variants[0].method), " and ".join(methods))
            for variant in having:
                for_all[variant.label][key] = value
    named = {label: {**for_method[label], **for_label[label]} for label in for_all}
    check_distinct(variants, named)
    return model, {v.label: {**for_all[v.label], **named[v.label], **v.settings} for v in variants}


def resolve(name: str, defaults: Mapping[str, Any], settings: Mapping[str, Any], by_epochs: bool) -> dict[str, Any]:
    """A method's parameters in full: its defaults, the task's, the user's, each winning over the one before."""
    client, _ = parts(name)
    known = params_of(name).model_fields
    own = _overridden(client)
    suited = {k: v for k, v in defaults.items() if k in known and k not in own}
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
                f"communications = {communications}: there can be 1 to {budget}, one an epoch, in a budget of {budget} "
                "local epochs (rounds × local_epochs)"
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


def _overridden(client: type[FedAvg]) -> set[str]:
    """Parameters that a method sets its own default for, which a task's general one must not undo."""
    base = FedAvg.Params.model_fields
    return {n for n, f in client.Params.model_fields.items() if n in base and f.default != base[n].default}


def model_spec(task: Task | TaskOutline, settings: Mapping[str, Any]) -> ModelSpec:
    for key in settings:
        if key not in ModelSpec.model_fields:
            known = ", ".join(f for f in ModelSpec.model_fields if f not in ("input_shape", "outputs"))
            raise PlanError(f"a model has no setting '{key}'; it has {known}")
    try:
        return pin(ModelSpec(**{**task.model.model_dump(), **settings}), BACKBONES)
    except ValidationError as error:
        first = error.errors()[0]
        raise PlanError(f"model.{'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}") from error


def check_weights(settings: Mapping[str, Any] | None) -> None:
    """Refuse a backbone whose weights are not here or do not fit it, before a million images are decoded for it."""
    name = (settings or {}).get("model.featurizer")
    weights = (settings or {}).get("model.weights", "auto")
    if name not in BACKBONES or weights == "none" or not isinstance(weights, str):
        return
    # Size and norm play no part in which file is taken: those of the plan are checked with the plan.
    spec = pin(
        ModelSpec(featurizer=name, input_shape=(3, 32, 32), outputs=1, norm="freeze", weights=weights), BACKBONES
    )
    build_model(spec, seed=0)


def augmentation(task: Task | TaskOutline, asked: Any) -> str:
    """What is done to training batches: what the user says, else what suits the task."""
    choices = (NONE, *AUGMENTATIONS)
    augment = task.defaults.get("augment", NONE) if asked is None else asked
    if augment not in choices:
        raise PlanError(f"augment = {augment!r}: choose one of {', '.join(choices)}")
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
