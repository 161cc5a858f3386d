"""Variants: a label, a method (or composition) and its own settings. A run is made with one.

On the command line:  fedavg,fedprox:mu=0.01,weak=fedprox:mu=0.001,fediir+fedomg:kappa=0.2
In Python:            ["fedavg", method("fedprox", mu=0.01), {"weak": method("fedprox", mu=0.001)}]

One method can so stand in a table several times, each time with other settings.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator

from farfield.algorithms import FedAvg, build, names, params_of, register
from farfield.errors import UserError
from farfield.records.setting_text import NONE, parse_value, value_text

#: What can stand for a variant in Python; a mapping gives labels.
AnyVariant: TypeAlias = "str | Variant | FedAvg | type[FedAvg] | Mapping[str, Any]"
#: Opening brackets and what closes them: commas and colons inside do not separate.
_BRACKETS = {"[": "]", "{": "}", "(": ")"}
#: Characters that separate the parts of a variant, so that no label can have them.
_SEPARATORS = ",:="
_GRAMMAR = "a variant is written [label=]method[:key=value…], as in 'weak=fedprox:mu=0.001'"


class VariantError(UserError):
    """A variant that cannot be read, in one sentence."""


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(of) for key, of in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(of) for key, of in value.items()}
    return [_plain(of) for of in value] if isinstance(value, tuple) else value


def _frozen_settings(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("settings are a mapping of names to values")
    return _frozen(value)


class Variant(BaseModel):
    """A method with its own settings, under the label that records, tables and the report go by.

    `settings` holds only what was set for this variant, as JSON values; the rest comes from the task and the plan.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    method: str
    settings: Annotated[Mapping[str, Any], PlainValidator(_frozen_settings), PlainSerializer(_plain)] = (
        MappingProxyType({})
    )

    @property
    def text(self) -> str:
        """Method and own settings as they are typed: 'fedprox:mu=0.1'."""
        return ":".join([self.method, *(f"{key}={value_text(_plain(value))}" for key, value in self.settings.items())])

    @property
    def plain(self) -> bool:
        """Whether this is a method under its own name, without settings of its own."""
        return self.label == self.method and not self.settings

    def concerns(self, owner: str) -> bool:
        """Whether a setting `owner.key` is for this variant: by a typed label, its method, or part of a composition."""
        by_label = owner == self.label and self.label != self.text
        return by_label or owner in (self.method, *self.method.split("+"))

    def __hash__(self) -> int:
        return hash((self.label, self.method))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Variant:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Variant.model_validate, (self.model_dump(),)

    def __str__(self) -> str:
        return self.text if self.label == self.text else f"{self.label}={self.text}"

    def __repr__(self) -> str:
        settings = "".join(f", {key}={value!r}" for key, value in self.settings.items())
        made = f"method({self.method!r}{settings})"
        return made if self.label == self.text else f"{{{self.label!r}: {made}}}"


def method(name: str | type[FedAvg], /, **settings: Any) -> Variant:
    """Return a method, or a composition 'a+b', with settings of its own, to be run beside others.

    Parameters
    ----------
    name : a method's name as `farfield list algorithms` prints it, a composition such as 'fediir+fedomg', or a class.
    settings : values of the method's parameters (`farfield show NAME` lists them). They win over all other settings.

    Returns
    -------
    A frozen `Variant`. Its label is the text that the command line takes, such as 'fedprox:mu=0.1'; a dict gives
    another: `{"weak": method("fedprox", mu=0.001)}`. Names and values are checked at once (UserError).
    """
    name = _method_name(name)
    for key in settings:
        if key.startswith("model."):
            raise VariantError(
                f"'{name}:{key}': the model is the same for all variants; set {key} for the whole bench (--set {key}=…)"
            )
    params = build(name, read_values(name, settings)).params
    own = params.model_dump(mode="json", include=set(settings))
    variant = Variant(label=name, method=name, settings={key: own[key] for key in settings})
    return variant.model_copy(update={"label": variant.text})


def read_values(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a method's parameters take them.

    The word 'none' is None where a parameter can be None. True and False are refused where a number is wanted, because
    they would count as 1 and 0. Whether a value is in its limits is for `build` to say.
    """
    fields = params_of(name).model_fields
    values = dict(settings)
    for key, value in settings.items():
        kinds = _kinds(fields[key].annotation) if key in fields else []
        if isinstance(value, str) and value.lower() == NONE and type(None) in kinds and NONE not in kinds:
            values[key] = None
        elif isinstance(value, bool) and bool not in kinds and (int in kinds or float in kinds):
            raise VariantError(f"{name}: {key} = {value_text(value)}: give a number")
    return values


def labelled(label: str, variant: Variant) -> Variant:
    """Return the variant under another label, unless that label would mislead or could not be typed."""
    label = label.strip()
    if not label or not label.isprintable():
        raise VariantError(
            f"a label must have visible characters, and {label!r} for '{variant.text}' has none or others"
        )
    reason = _against(label, variant)
    if reason:
        raise VariantError(f"the label '{label}' of '{variant.text}' {reason}; choose another label")
    return variant.model_copy(update={"label": label})


def _against(label: str, variant: Variant) -> str:
    """Return why a label cannot stand for a variant; empty if it can."""
    if label == "model":
        return "stands for the model's settings in --set"
    found = next((character for character in _SEPARATORS if character in label), None)
    if found is not None:
        return f"has a '{found}', which separates the parts of a variant"
    if _split(f"{label},", ",") != [label, ""]:
        return "has a quote or a bracket that nothing closes"
    parts = [part.strip() for part in label.casefold().split("+")]
    if "+".join(parts) != variant.method and set(parts) <= set(names()):
        return "is the name of another method"
    return ""


def read_variants(given: AnyVariant | Iterable[AnyVariant]) -> tuple[Variant, ...]:
    """Return the variants that a user gave, in order.

    `given` is a list of names, texts as on the command line, variants, classes or instances of algorithms, and dicts
    that map labels to one of these; or a single one of them. Raises UserError for none at all, for two with one label,
    and for the same variant twice.
    """
    single = isinstance(given, str | Variant | FedAvg | type | Mapping) or not isinstance(given, Iterable)
    items: Iterable[Any] = [given] if single else given  # type: ignore[assignment]
    found = [variant for item in items for variant in _read(item)]
    if not found:
        raise VariantError("no method is given; name at least one, as 'fedavg' ('farfield list algorithms' has all)")
    _check_labels(found)
    return tuple(found)


def check_distinct(variants: Sequence[Variant], settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse the same variant under two labels: one method with the same `settings`, which are given by label."""
    for number, variant in enumerate(variants):
        for other in variants[:number]:
            if (variant.method, settings[variant.label]) == (other.method, settings[other.label]):
                raise VariantError(
                    f"'{other.label}' and '{variant.label}' are the same variant, {variant.method} with the same "
                    "settings; leave one out, or give it other settings"
                )


def parse_variants(text: str) -> list[Variant]:
    """Read what --algorithms takes: variants with commas, each `[label=]method[:key=value…]`."""
    found: list[Variant] = []
    for part in _split(text, ","):
        if not part.strip():
            continue
        try:
            found.append(_parse(part.strip()))
        except UserError as error:
            label, equals, _ = part.partition("=")
            if equals and found and label.strip() in params_of(found[-1].method).model_fields:
                raise VariantError(
                    f"'{part.strip()}' is no variant; another setting of '{found[-1]}' follows after a colon: "
                    f"'{found[-1]}:{part.strip()}'"
                ) from error
            raise
    return found


def _read(item: Any) -> list[Variant]:
    if isinstance(item, str):
        return parse_variants(item)
    if isinstance(item, Variant):
        return [item]
    if isinstance(item, Mapping):
        return [_read_labelled(label, value) for label, value in item.items()]
    if isinstance(item, type) and issubclass(item, FedAvg):
        return [method(item)]
    if isinstance(item, FedAvg):
        return [_of_instance(item)]
    raise VariantError(
        f"{item!r} stands for no method; give a name, farfield.method(name, …), or a class or an instance of a method"
    )


def _read_labelled(label: Any, value: Any) -> Variant:
    found = _read(value)
    if len(found) != 1 or not isinstance(label, str):
        raise VariantError(f"a label is a text that stands for one variant, and {label!r} is given for {value!r}")
    return labelled(label, found[0])


def _method_name(name: Any) -> str:
    """Return the name of a method or composition without spaces; a class is registered."""
    if isinstance(name, type) and issubclass(name, FedAvg):
        return _register(name)
    if not isinstance(name, str):
        raise VariantError(f"a method has a name or a class, and {name!r} is neither; its settings are keywords")
    if any(character in name for character in _SEPARATORS):
        found = parse_variants(name)
        form = repr(found[0]) if len(found) == 1 else "method('fedprox', mu=0.01)"
        raise VariantError(f"'{name}' is more than a method's name; settings are keywords, as in farfield.{form}")
    parts = [part.strip() for part in name.split("+")]
    if not all(parts):
        raise VariantError(f"'{name}': a method's name is missing; {_GRAMMAR}")
    return "+".join(parts)


def _register(method: type[FedAvg]) -> str:
    """Make a class known by its name, if it has one of its own and can be made for a run."""
    given = method.__name__
    if "name" not in vars(method):
        raise VariantError(f"give {given} a name of its own, as in name = '{given.lower()}': '{method.name}' is taken")
    try:
        inspect.signature(method).bind(None, None, None)
    except TypeError:
        raise VariantError(
            f"{given} cannot be made for a run, which calls {given}(params, server, rounds); put other values into "
            f"{given}.Params"
        ) from None
    return register(method).name


def _of_instance(algorithm: FedAvg) -> Variant:
    """The parameters that were set become the settings; those left at their defaults are the task's to suit."""
    of, params = type(algorithm), algorithm.params
    given = of.__name__
    if not isinstance(params, of.Params):
        raise VariantError(f"{given} takes its parameters as {given}.Params(…), and this one has {params!r}")
    if algorithm.server is not None or "+" in type(params).__name__:
        raise VariantError(
            f"an instance of '{algorithm.name}' under another method's server does not say which server; give the "
            "composition by name: farfield.method('a+b', …)"
        )
    if type(params) is not of.Params:
        raise VariantError(f"this {given} has the parameters {type(params).__qualname__}; give it {given}.Params(…)")
    if algorithm.rounds is not None:
        raise VariantError(f"this {given} has rounds={algorithm.rounds}, which the bench decides; give rounds there")
    lost = [name for name in vars(algorithm) if name not in ("params", "server", "rounds") and name[0] != "_"]
    if lost or of.__init__ is not FedAvg.__init__:
        raise VariantError(
            f"a run is made with the parameters of {given} alone, and this one has more ({', '.join(lost)}); put "
            f"{' and '.join(lost)} into {given}.Params"
            if lost
            else f"{given} has an __init__ of its own, and a run is made with its parameters alone; put what it sets "
            f"into {given}.Params"
        )
    return method(of, **params.model_dump(mode="json", exclude_unset=True))


def _parse(part: str) -> Variant:
    head, *pairs = _split(part, ":")
    label, equals, name = head.rpartition("=")
    if not all(piece.strip() for piece in name.split("+")):
        raise VariantError(f"'{part}': the method's name is missing; {_GRAMMAR}")
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, has_value, value = pair.partition("=")
        key = key.strip()
        if not has_value and not equals and not _is_method(head) and _is_method(pair):
            raise VariantError(
                f"'{part}': a label stands before an equals sign: '{part.replace(':', '=', 1)}'; {_GRAMMAR}"
            )
        if not has_value or not key or not value.strip():
            raise VariantError(
                f"'{part}': settings of a variant are key=value after a colon, as in 'fedprox:mu=0.1'; "
                f"'{pair.strip()}' is none"
            )
        if key in settings:
            raise VariantError(f"'{part}' sets {key} twice")
        settings[key] = parse_value(value.strip())
    if equals and not _is_method(name) and not difflib.get_close_matches(name.strip(), names()):
        raise VariantError(_no_variant(part))
    variant = method(name.strip(), **settings)
    return labelled(label, variant) if equals else variant


def _is_method(name: str) -> bool:
    return {piece.strip() for piece in name.split("+")} <= set(names())


def _no_variant(part: str) -> str:
    """Say what a variant looks like; where settings follow a method in another way, say this one with colons."""
    found = re.fullmatch(r"([\w+-]+)\s*[.;( ]\s*(\w+\s*=.+?)\)?", part)
    if found is None or not _is_method(found[1]):
        return f"'{part}' is no variant; {_GRAMMAR}"
    typed = ":".join([found[1], *(pair.strip() for pair in _split(found[2], ","))])
    return f"'{part}' is no variant; {_GRAMMAR}, so here '{typed}'"


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator that stands in no brackets and no quotes."""
    parts, closing, quote = [""], [], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in _BRACKETS:
            closing.append(_BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == separator and not closing:
            parts.append("")
            continue
        parts[-1] += character
    return parts


def _kinds(annotation: Any) -> list[Any]:
    """Return a type and all that it is made of: what a union allows, the values of a Literal."""
    return [annotation, *(kind for part in get_args(annotation) for kind in _kinds(part))]


def _check_labels(variants: Sequence[Variant]) -> None:
    first: dict[str, Variant] = {}
    for variant in variants:
        other = first.get(variant.label)
        if other is None:
            first[variant.label] = variant
        elif other == variant:
            raise VariantError(f"'{variant}' is given twice; leave one out, or give it other settings")
        else:
            raise VariantError(
                f"two variants have the label '{variant.label}', {other.text} and {variant.text}; give each its own"
            )
