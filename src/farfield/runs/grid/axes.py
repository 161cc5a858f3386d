"""What is swept: options of the bench (one bench per value), or parameters of methods (one variant per value)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from farfield.algorithms import params_of
from farfield.records.setting_text import parse_value, value_text
from farfield.runs.settings import PlanError
from farfield.runs.variants import Variant, method

#: Options of a bench that can be swept.
OPTIONS = ("clients", "cohort", "communications", "rounds", "partition", "validation")
#: Axes at once: x and panels.
MOST_AXES = 2


@dataclass(frozen=True)
class Axis:
    """A name with its values. `owner` restricts a parameter to one method or label, as in `fediir.gamma`."""

    name: str
    values: tuple[Any, ...]
    option: bool
    owner: str = ""


@dataclass(frozen=True)
class Expanded:
    """A variant of the grid: what it was made from, and the swept parameters that it has."""

    variant: Variant
    base: str
    values: dict[str, Any]


def read_axes(
    given: Mapping[str, Iterable[Any]] | Sequence[str], variants: Sequence[Variant], options: Mapping[str, Any]
) -> tuple[Axis, ...]:
    """Return the axes of a sweep, refusing in one sentence what cannot be swept. `options` are the bench's own."""
    pairs = [(name, list(values)) for name, values in given.items()] if isinstance(given, Mapping) else _typed(given)
    axes: list[Axis] = []
    for key, values in pairs:
        owner, _, name = key.rpartition(".")
        if not values:
            raise PlanError(f"--sweep {key}= has no values; give them with commas, as in --sweep {key}=1,2,4")
        twice = next((value for number, value in enumerate(values) if value in values[:number]), None)
        if twice is not None:
            raise PlanError(f"--sweep {key} has the value {value_text(twice)} twice; leave one out")
        if any(axis.name == name for axis in axes):
            raise PlanError(f"--sweep {name} is given twice; put all values into one, as in --sweep {name}=1,2,4")
        axes.append(Axis(name, tuple(values), _is_option(owner, name, variants), owner))
        if axes[-1].option and options.get(name) is not None:
            raise PlanError(f"{name} is swept and set to {value_text(options[name])} as well; omit one of the two")
    if not axes:
        raise PlanError("there is nothing to sweep; give a name with values, as in --sweep clients=3,10,50")
    if len(axes) > MOST_AXES:
        names = ", ".join(axis.name for axis in axes)
        raise PlanError(f"{len(axes)} things are swept at once ({names}), and {MOST_AXES} can be; make two sweeps")
    return tuple(axes)


def _typed(given: Sequence[str]) -> list[tuple[str, list[Any]]]:
    pairs = []
    for text in given:
        key, equals, values = text.partition("=")
        if not equals or not key.strip():
            raise PlanError(f"--sweep takes name=value,value,…, not '{text}'")
        pairs.append((key.strip(), [parse_value(part.strip()) for part in values.split(",") if part.strip()]))
    return pairs


def _is_option(owner: str, name: str, variants: Sequence[Variant]) -> bool:
    """Whether a name is an option of the bench; else it is a parameter of some method here, or it is refused."""
    if owner == "model":
        raise PlanError(f"the model is the same in all runs of a bench; make one bench per value of model.{name}")
    fields = {name for variant in variants for name in params_of(variant.method).model_fields}
    if not owner and name in OPTIONS and name in fields:
        having = next(v.method for v in variants if name in params_of(v.method).model_fields)
        raise PlanError(
            f"'{name}' is an option of the bench and a parameter of {having}; sweep the parameter as {having}.{name}"
        )
    if not owner and name in OPTIONS:
        return True
    concerned = [v for v in variants if not owner or v.concerns(owner)]
    if not concerned:
        raise PlanError(f"--sweep {owner}.{name}: '{owner}' is not among the methods here")
    having_it = [v for v in concerned if name in params_of(v.method).model_fields]
    if not having_it:
        near = difflib.get_close_matches(name, [*OPTIONS, *sorted(fields)], n=1, cutoff=0.7)
        near = near or [field for field in sorted(fields) if field.startswith(name[:3])][:1]
        hint = f"did you mean '{near[0]}'?" if near else f"options that can be swept are {', '.join(OPTIONS)}"
        raise PlanError(f"no method here has a parameter '{name}' to sweep, and no option has that name; {hint}")
    if all(name in v.settings for v in having_it):
        raise PlanError(f"{name} is swept, and {having_it[0].label} sets it itself; omit one of the two")
    return False


def expand(variants: Sequence[Variant], axes: Sequence[Axis]) -> list[Expanded]:
    """Return every variant with every value of the parameters that it has; one that has none stays once."""
    found = []
    for variant in variants:
        fields = params_of(variant.method).model_fields
        own = [
            axis
            for axis in axes
            if not axis.option
            and axis.name in fields
            and axis.name not in variant.settings
            and (not axis.owner or variant.concerns(axis.owner))
        ]
        for values in product(*(axis.values for axis in own)):
            swept = {axis.name: value for axis, value in zip(own, values, strict=True)}
            found.append(Expanded(_made(variant, swept), variant.label, swept))
    return found


def _made(variant: Variant, swept: Mapping[str, Any]) -> Variant:
    if not swept:
        return variant
    made = method(variant.method, **{**variant.settings, **swept})
    if variant.label == variant.text:
        return made
    values = " ".join(f"{name}={value_text(value)}" for name, value in swept.items())
    return made.model_copy(update={"label": f"{variant.label} {values}"})


def points(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Return the values of the bench's options at each point; a single point without any where only methods vary."""
    options = [axis for axis in axes if axis.option]
    return [
        {axis.name: value for axis, value in zip(options, values, strict=True)}
        for values in product(*(axis.values for axis in options))
    ]


def point_name(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value_text(value)}" for name, value in values.items()) or "all"
