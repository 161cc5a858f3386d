"""Presets: the papers' settings, one TOML each, named PAPER/TASK. A comment beside a value says where it comes from."""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from typing import Any

from farfield.algorithms import params_of
from farfield.errors import UserError

#: What a preset may say besides `task` and `[set]`; each is the option of the same name.
OPTIONS = (
    "algorithms",
    "rounds",
    "communications",
    "clients",
    "cohort",
    "partition",
    "validation",
    "seeds",
    "evaluate_every",
    "equal_steps",
    "select",
)


@dataclass(frozen=True)
class Preset:
    name: str
    task: str
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    with as_file(files("farfield") / "presets") as folder:
        return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml"))


def load(name: str) -> Preset:
    """A preset by name; a name that there is not gets a suggestion."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see 'farfield list presets'"
        raise UserError(f"unknown preset '{name}'; {hint}")
    text = files("farfield").joinpath("presets", *f"{name}.toml".split("/")).read_text()
    content = tomllib.loads(text)
    unknown = set(content) - {"task", "set", *OPTIONS}
    if unknown:
        raise UserError(f"preset '{name}' says '{sorted(unknown)[0]}', which is no option of a bench")
    comment = " ".join(
        line.lstrip("# ") for line in itertools.takewhile(lambda x: x.startswith("#"), text.splitlines())
    )
    about = comment.partition(". ")[0].rstrip(".")
    options = {key: value for key, value in content.items() if key in OPTIONS}
    return Preset(name, content["task"], about, options, _dotted(content.get("set", {})))


def with_preset(name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's options: what was given (not None), else what the preset says; settings are merged key by key."""
    chosen = {key: value for key, value in given.items() if value is not None}
    if name is None:
        return chosen
    preset = load(name)
    options = dict(preset.options)
    if "select" in options:
        options["rules"] = options.pop("select")
    if isinstance(options.get("communications"), str):
        numbers = [int(part) for part in options["communications"].split(",")]
        options["communications"] = numbers if len(numbers) > 1 else numbers[0]
    options |= chosen
    # Whoever runs only some of a preset's methods has no use for the settings of the others.
    wanted = {key: value for key, value in preset.settings.items() if _is_for(key, options["algorithms"])}
    return {**options, "settings": {**wanted, **chosen.get("settings", {})}}


def _is_for(key: str, algorithms: Sequence[str]) -> bool:
    """Whether a setting concerns one of these methods, or the model that all of them share."""
    owner, _, field = key.rpartition(".")
    if owner == "model" or key == "augment":
        return True
    if owner:
        return any(owner == name or owner in name.split("+") for name in algorithms)
    return any(field in params_of(name).model_fields for name in algorithms)


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
