"""A setting's value as text: read as it is typed, and written so that it reads back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

#: Characters that mean something in the text of a variant; a value with one of them is quoted.
_SPECIAL = frozenset(" ,:='\"[]{}()")
#: What stands for None in a text; TOML has no word for it.
NONE = "none"


def parse_value(text: str) -> Any:
    """Read a value: TOML, or else plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def value_text(value: Any) -> str:
    """Write a JSON value as it is typed; `parse_value` reads it back, except None, whose word is 'none'."""
    if value is None:
        return NONE
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    if isinstance(value, str):
        plain = bool(value) and value.isprintable() and not _SPECIAL & set(value) and parse_value(value) == value
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, separators=(",", ":"))


def readable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a TOML file, which would leave out a value of None: the word takes its place."""
    return {key: NONE if value is None else value for key, value in settings.items()}
