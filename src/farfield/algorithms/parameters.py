"""The parameters of methods: each has a default, a meaning, limits, and the range in which a search would look.

    class Params(FedAvg.Params):
        mu: float = parameter(0.1, "μ, weight of the proximal term", log_range(1e-4, 1.0), ge=0)

A parameter of type bool or Literal needs no range: its values are the choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

_KEY = "search"


def parameter(default: Any, meaning: str, search: Mapping[str, Any] | None = None, **limits: Any) -> Any:
    """Declare a parameter: its default, its meaning, where a search looks, and pydantic's limits (`ge=0`)."""
    return Field(default, description=meaning, json_schema_extra=None if search is None else dict(search), **limits)


@dataclass(frozen=True)
class SearchRange:
    """A range on a scale, choices, or nothing to search ("fixed")."""

    scale: Literal["log", "linear", "choices", "fixed"]
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.scale == "fixed":
            return "–"
        if self.scale == "choices":
            return ", ".join(str(choice) for choice in self.choices)
        return f"{self.low:g} to {self.high:g}" + (", log" if self.scale == "log" else "")


def log_range(low: float, high: float) -> dict[str, Any]:
    """Search between two values on a log scale; both must be over 0."""
    if not 0 < low < high:
        raise ValueError(f"a log scale goes from a value over 0 to a higher one, not from {low} to {high}")
    return {_KEY: {"scale": "log", "low": low, "high": high}}


def linear_range(low: float, high: float) -> dict[str, Any]:
    """Search between two values on a linear scale."""
    if not low < high:
        raise ValueError(f"a linear scale goes from a value to a higher one, not from {low} to {high}")
    return {_KEY: {"scale": "linear", "low": low, "high": high}}


def choices(*values: Any) -> dict[str, Any]:
    """Search among these values."""
    return {_KEY: {"scale": "choices", "choices": list(values)}}


def fixed() -> dict[str, Any]:
    """Do not search: the value says what is asked, not how well it is done."""
    return {_KEY: {"scale": "fixed"}}


def search_range(field: FieldInfo) -> SearchRange | None:
    """The range that a parameter carries; None where it carries none and its type gives no choices."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and _KEY in extra:
        carried: Any = extra[_KEY]
        return SearchRange(**{**carried, "choices": tuple(carried.get("choices", ()))})
    options = [field.annotation, *get_args(field.annotation)]
    literal = next((kind for kind in options if get_origin(kind) is Literal), None)
    if literal is not None:
        return SearchRange("choices", choices=get_args(literal))
    if field.annotation is bool:
        return SearchRange("choices", choices=(False, True))
    return None
