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
from farfield.models import is_backbone
from farfield.runs.settings import sort_settings
from farfield.runs.variants import Variant, read_variants

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
    "metric",
    "baseline",
    "image_size",
)
#: As the policy of a pretrained network's BatchNorm: its statistics stay those that it was pretrained with.
FREEZE = "freeze"


@dataclass(frozen=True)
class Preset:
    name: str
    task: str
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def image_size(self) -> int | None:
        """Pixels along each side of its images; None where its task has no image files."""
        size: int | None = self.options.get("image_size")
        return size

    @property
    def network(self) -> str:
        """Its network in a few words, as 'resnet18 pretrained, norm freeze, head 256, 224 px'."""
        model = {key.removeprefix("model."): value for key, value in self.settings.items() if key.startswith("model.")}
        return describe_network(model, self.image_size)


@dataclass(frozen=True)
class Chosen:
    """What a preset and its user say together: how images are opened, and the options of the plan."""

    image_size: int | None
    options: dict[str, Any]
    #: What of the preset was left out and why, one sentence per part.
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.options.get("settings", {})
        return settings


def names() -> list[str]:
    with as_file(files("farfield") / "presets") as folder:
        return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml"))


def text_of(name: str) -> str:
    """A preset's file, with the comments that say where its values come from; a wrong name gets a suggestion."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see 'farfield list presets'"
        raise UserError(f"unknown preset '{name}'; {hint}")
    return files("farfield").joinpath("presets", *f"{name}.toml".split("/")).read_text()


def load(name: str) -> Preset:
    text = text_of(name)
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


def with_preset(
    name: str | None,
    given: Mapping[str, Any],
    *,
    features: str | None = None,
    image_size: int | None = None,
    own_rows: bool = True,
) -> Chosen:
    """What was given (not None), else what the preset says; settings are merged key by key.

    A preset's network (image_size, model.*, augment) is one for rows like those of its task. It is left out, with a
    note, where the rows are others: given `features`, or data for which `own_rows` is False.
    """
    chosen = {key: value for key, value in given.items() if value is not None}
    if name is None:
        return Chosen(image_size, chosen)
    preset = load(name)
    options = dict(preset.options)
    own_size = options.pop("image_size", None)
    if "select" in options:
        options["rules"] = options.pop("select")
    if isinstance(options.get("communications"), str):
        numbers = [int(part) for part in options["communications"].split(",")]
        options["communications"] = numbers if len(numbers) > 1 else numbers[0]
    options |= chosen
    asked = chosen.get("settings", {})
    options["algorithms"] = variants = read_variants(options["algorithms"])
    # Whoever runs only some of a preset's methods has no use for the settings of the others.
    wanted = {key: value for key, value in preset.settings.items() if _is_for(key, variants)}
    # What the user's own settings win over is not worth a note.
    beaten = sort_settings({k: v for k, v in {**wanted, **asked}.items() if k != "augment"}, variants).beaten
    wanted = {key: value for key, value in wanted.items() if key not in beaten}
    notes = []
    if features is not None or not own_rows:
        network = [key for key in wanted if _is_network(key)]
        if network or own_size is not None:
            notes.append(_without_network(preset, features))
        wanted = {key: value for key, value in wanted.items() if key not in network}
        own_size = None
    elif _freezes_nothing(wanted, asked):
        del wanted["model.norm"]
        notes.append(
            f"preset '{name}' freezes the BatchNorm statistics of pretrained weights, and there are none here: "
            "model.norm is the task's own"
        )
    size = image_size if image_size is not None else own_size
    return Chosen(size, {**options, "settings": {**wanted, **asked}}, tuple(notes))


def describe_network(model: Mapping[str, Any], image_size: int | None = None) -> str:
    """A network's settings in a few words, those that are told."""
    parts = [str(model["featurizer"])] if "featurizer" in model else []
    if "weights" in model and is_backbone(str(model.get("featurizer"))):
        weights = str(model["weights"])
        parts[0] += " from scratch" if weights == "none" else " pretrained"
    elif model.get("hidden"):
        parts.append("-".join(map(str, model["hidden"])))
    if "norm" in model:
        parts.append(f"norm {model['norm']}")
    if model.get("head") == "mlp":
        parts.append(f"head {model['head_hidden']}" if "head_hidden" in model else "head mlp")
    if "init" in model and model["init"] != "torch":
        parts.append(f"init {model['init']}")
    if model.get("outputs") == 1:
        parts.append("one output")
    if image_size is not None:
        parts.append(f"{image_size} px")
    return ", ".join(parts)


def _without_network(preset: Preset, features: str | None) -> str:
    what = preset.network or "what it does to images"
    if features is not None:
        return (
            f"preset '{preset.name}' has a network for images ({what}), which is left out because --features gives "
            "vectors; the model is that of the features"
        )
    return (
        f"preset '{preset.name}' has a network for task '{preset.task}' ({what}), which is left out on other data; the "
        "model is the data's own, and --set model.… gives another"
    )


def _freezes_nothing(wanted: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether the preset would freeze statistics that nothing was pretrained with: in effect, no norm at all."""
    if "model.norm" in asked or wanted.get("model.norm") != FREEZE:
        return False
    model = {**wanted, **asked}
    return not is_backbone(str(model.get("model.featurizer"))) or model.get("model.weights") == "none"


def _is_network(key: str) -> bool:
    return key == "augment" or key.startswith("model.")


def _is_for(key: str, variants: Sequence[Variant]) -> bool:
    """Whether a setting concerns one of these variants, or the model that all of them share."""
    owner, _, field = key.rpartition(".")
    if _is_network(key):
        return True
    if owner:
        return any(variant.concerns(owner) for variant in variants)
    return any(field in params_of(variant.method).model_fields for variant in variants)


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
