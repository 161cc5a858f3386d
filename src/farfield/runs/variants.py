"""Variants: a label, a method (or composition) and its own settings. A run is made with one.

On the command line:  fedavg,fedprox:mu=0.1,weak=fedprox:mu=0.001,fediir+fedomg:kappa=0.2
In Python:            ["fedavg", method("fedprox", mu=0.1), {"weak": method("fedprox", mu=0.001)}]

One method can so stand in a table several times, each time with other settings.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from farfield.algorithms import AlgorithmError, FedAvg, build, names, params_of, register
from farfield.errors import UserError

#: What can stand for a variant in Python; a mapping gives labels.
AnyVariant: TypeAlias = "str | Variant | FedAvg | type[FedAvg] | Mapping[str, Any]"
#: Opening brackets and what closes them: commas and colons inside do not separate.
_BRACKETS = {"[": "]", "{": "}", "(": ")"}


class VariantError(UserError):
    """A variant that cannot be read, in one sentence."""


class Variant(BaseModel):
    """A method with its own settings, under the label that records, tables and the report go by.

    `settings` holds only what was set for this variant, as JSON values; the rest comes from the task and the plan.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    method: str
    settings: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """Method and own settings as they are typed: 'fedprox:mu=0.1'."""
        return ":".join([self.method, *(f"{key}={_typed(value)}" for key, value in self.settings.items())])

    @property
    def plain(self) -> bool:
        """Whether this is a method under its own name, without settings of its own."""
        return self.label == self.method and not self.settings

    def concerns(self, owner: str) -> bool:
        """Whether a setting `owner.key` is for this variant: by its label, its method, or a part of a composition."""
        return owner in (self.label, self.method, *self.method.split("+"))

    def __str__(self) -> str:
        return self.text if self.label == self.text else f"{self.label}={self.text}"

    def __repr__(self) -> str:
        settings = "".join(f", {key}={value!r}" for key, value in self.settings.items())
        made = f"method({self.method!r}{settings})"
        return made if self.label == self.text else f"{{{self.label!r}: {made}}}"


def method(name: str, /, **settings: Any) -> Variant:
    """Return a method, or a composition 'a+b', with settings of its own, to be run beside others.

    Parameters
    ----------
    name : a method's name as `farfield list algorithms` prints it, or a composition such as 'fediir+fedomg'.
    settings : values of the method's parameters (`farfield show NAME` lists them). They win over all other settings.

    Returns
    -------
    A frozen `Variant`. Its label is the text that the command line takes, such as 'fedprox:mu=0.1'; a dict gives
    another: `{"weak": method("fedprox", mu=0.001)}`. Names and values are checked at once (UserError).
    """
    name = "+".join(part.strip() for part in name.split("+"))
    for key in settings:
        if key.startswith("model."):
            raise VariantError(
                f"'{name}:{key}': the model is the same for all variants; set {key} for the whole bench (--set {key}=…)"
            )
    params = build(name, settings).params
    own = params.model_dump(mode="json", include=set(settings))
    variant = Variant(label=name, method=name, settings={key: own[key] for key in settings})
    return variant.model_copy(update={"label": variant.text})


def labelled(label: str, variant: Variant) -> Variant:
    """Return the variant under another label, unless that label would mislead."""
    label = label.strip()
    if not label or not label.isprintable():
        raise VariantError(
            f"a label must have visible characters, and {label!r} for '{variant.text}' has none or others"
        )
    misleads = label == "model" or (label != variant.method and set(label.split("+")) <= set(names()))
    if misleads:
        what = "stands for the model's settings in --set" if label == "model" else "is the name of another method"
        raise VariantError(f"the label '{label}' of '{variant.text}' {what}; choose another label")
    return variant.model_copy(update={"label": label})


def read_variants(given: AnyVariant | Iterable[AnyVariant]) -> tuple[Variant, ...]:
    """Return the variants that a user gave, in order.

    `given` is a list of names, texts as on the command line, variants, classes or instances of algorithms, and dicts
    that map labels to one of these; or a single one of them. Raises UserError for two with one label, and for the
    same variant twice.
    """
    single = isinstance(given, str | Variant | FedAvg | type | Mapping)
    found = [variant for item in ([given] if single else given) for variant in _read(item)]  # type: ignore[union-attr]
    _check_labels(found)
    return tuple(found)


def check_distinct(variants: Sequence[Variant], more: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse the same variant under two labels. `more` holds what was set for labels beside the variants' own."""
    for number, variant in enumerate(variants):
        for other in variants[:number]:
            if (variant.method, {**more[variant.label], **variant.settings}) == (
                other.method,
                {**more[other.label], **other.settings},
            ):
                raise VariantError(
                    f"'{other.label}' and '{variant.label}' are the same variant, {variant.text}; leave one out, or "
                    "give it other settings"
                )


def parse_variants(text: str) -> list[Variant]:
    """Read what --algorithms takes: variants with commas, each `[label=]method[:key=value…]`."""
    found: list[Variant] = []
    for part in _split(text, ","):
        if not part.strip():
            continue
        try:
            found.append(_parse(part))
        except AlgorithmError as error:
            label, equals, _ = part.partition("=")
            if equals and found and label.strip() in params_of(found[-1].method).model_fields:
                raise VariantError(
                    f"'{part.strip()}' is no variant; another setting of '{found[-1]}' follows after a colon: "
                    f"'{found[-1]}:{part.strip()}'"
                ) from error
            raise
    return found


def parse_value(text: str) -> Any:
    """Read a setting's value: TOML, or else plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _read(item: Any) -> list[Variant]:
    if isinstance(item, str):
        return parse_variants(item)
    if isinstance(item, Variant):
        return [item]
    if isinstance(item, Mapping):
        return [_read_labelled(label, value) for label, value in item.items()]
    if isinstance(item, type) and issubclass(item, FedAvg):
        return [method(register(item).name)]
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


def _of_instance(algorithm: FedAvg) -> Variant:
    """The parameters that were set become the settings; those left at their defaults are the task's to suit."""
    if type(algorithm.params) is not type(algorithm).Params:
        raise VariantError(
            f"an instance of '{algorithm.name}' under another method's server does not say which server; give the "
            "composition by name: farfield.method('a+b', …)"
        )
    name = register(type(algorithm)).name
    return method(name, **algorithm.params.model_dump(mode="json", exclude_unset=True))


def _parse(part: str) -> Variant:
    head, *pairs = _split(part, ":")
    label, equals, name = head.rpartition("=")
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, has_value, value = pair.partition("=")
        key = key.strip()
        if not has_value or not key or not value.strip():
            raise VariantError(
                f"'{part.strip()}': settings of a variant are key=value after a colon, as in 'fedprox:mu=0.1'; "
                f"'{pair.strip()}' is none"
            )
        if key in settings:
            raise VariantError(f"'{part.strip()}' sets {key} twice")
        settings[key] = parse_value(value.strip())
    variant = method(name.strip(), **settings)
    return labelled(label, variant) if equals else variant


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


def _typed(value: Any) -> str:
    """A JSON value as it is typed in a variant; `parse_value` reads it back."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    if isinstance(value, str):
        return value if value and not set(value) & set(" ,:='\"[]{}()") else json.dumps(value)
    return "none" if value is None else json.dumps(value, separators=(",", ":"))


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
