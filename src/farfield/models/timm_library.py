"""The library timm: which models it has, and what each was made for. Only `download` reaches the network.

    resolved_name("timm:resnet18")  # 'timm:resnet18.a1_in1k@1.0.30': what a record says
    configuration("timm:resnet18")  # image size, channels, mean and deviation of the pixels

A model of timm is named as timm names it, with or without the tag of its weights. A record adds the tag and the version
of timm, because another version may compute something else under the same name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import UserError

PREFIX = "timm:"
_VERSION = "@"


class TimmError(UserError):
    """A model of timm that cannot be built as asked."""


class MissingTimm(TimmError):
    """A model of timm where timm, or the version that the model was built with, is not installed."""


@dataclass(frozen=True)
class Configuration:
    """What timm says about a model and its pretrained weights."""

    #: The name with the tag of the weights, as 'resnet18.a1_in1k'.
    name: str
    #: Channels, height and width of the images that it was pretrained on.
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    #: Whether the model takes images of this size only.
    fixed_size: bool
    #: Where timm gets the weights: a repository of the hub, or an address; empty where none are published.
    source: str
    licence: str


def is_timm(featurizer: str) -> bool:
    return featurizer.startswith(PREFIX)


def file_stem(featurizer: str) -> str:
    """The name of a model's weight file in a weights folder, without its ending: 'timm-resnet18.a1_in1k'."""
    return f"timm-{configuration(featurizer).name}"


def native_shape(featurizer: str, other: int = 32) -> tuple[int, int, int]:
    """Return channels, height and width of the images of a timm model's pretraining; other backbones take any size."""
    return configuration(featurizer).shape if is_timm(featurizer) else (3, other, other)


def resolved_name(featurizer: str) -> str:
    """Return a timm model's name with the tag of its weights and the version of timm; other names are unchanged.

    A model of timm that this machine cannot build is refused.
    """
    if not is_timm(featurizer):
        return featurizer
    return f"{PREFIX}{configuration(featurizer).name}{_VERSION}{_library(featurizer).__version__}"


@cache
def configuration(featurizer: str) -> Configuration:
    """Look a model up in timm. A wrong name gets a suggestion, and another version of timm is refused."""
    name, _, wanted = featurizer.removeprefix(PREFIX).partition(_VERSION)
    timm = _library(featurizer)
    if wanted and wanted != timm.__version__:
        raise MissingTimm(
            f"'{PREFIX}{name}' was built with timm {wanted}, and timm {timm.__version__} is installed here: "
            f"pip install 'timm=={wanted}' gives the same model"
        )
    architecture = name.partition(".")[0]
    known = timm.list_models()
    if architecture not in known:
        raise _unknown(f"timm has no model '{name}'", architecture, known)
    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError:
        tagged = timm.list_pretrained(f"{architecture}.*")
        raise _unknown(f"timm's {architecture} has no weights '{name.partition('.')[2]}'", name, tagged) from None
    return _read(architecture, found)


def _read(architecture: str, found: Any) -> Configuration:
    if found is None:  # a model that timm publishes no weights of; these are timm's own values for it
        from timm.models import PretrainedCfg

        found = PretrainedCfg()
    return Configuration(
        name=f"{architecture}.{found.tag}" if found.tag else architecture,
        shape=tuple(found.input_size),
        mean=tuple(map(float, found.mean)),
        deviation=tuple(map(float, found.std)),
        fixed_size=bool(found.fixed_input_size),
        source=str(found.hf_hub_id or found.url or ""),
        licence=str(found.license or ""),
    )


def _unknown(what: str, name: str, known: list[str]) -> TimmError:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return TimmError(f"{what}; did you mean '{PREFIX}{near[0]}'?")
    few = f"it has {', '.join(known)}" if 0 < len(known) <= 10 else "timm.list_models() in Python lists all"
    return TimmError(f"{what}; {few}")


def _library(featurizer: str) -> Any:
    timm, problem = _imported()
    if problem:
        raise MissingTimm(f"'{featurizer.partition(_VERSION)[0]}' needs the package timm, {problem}")
    return timm


@cache
def _imported() -> tuple[Any, str]:
    """The library, or what is wrong with it. Asked once: an import that failed half-way fails in another way later."""
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name == "timm":
            return None, "which is not installed: pip install 'farfield[timm]'"
        return None, _broken(error)
    except Exception as error:  # torchvision, which timm imports, raises whatever its compiled part makes of torch
        return None, _broken(error)
    return timm, ""


def _broken(error: Exception) -> str:
    first = str(error).split("\n")[0]
    return (
        f"which cannot be imported here ({first}): install the torchvision that belongs to torch "
        f"{torch.__version__.partition('+')[0]}"
    )


def create(featurizer: str, images: tuple[int, int] | None = None) -> nn.Module:
    """Build the network of a model up to its pooled features, with random weights.

    `images` is the height and width for a model of fixed size, where it is another than timm's.
    """
    name = configuration(featurizer).name
    sized = {} if images is None else {"img_size": images}
    network: nn.Module = _library(featurizer).create_model(name, pretrained=False, num_classes=0, **sized)
    return network


def classifier_names(featurizer: str) -> Callable[[str], bool]:
    """Return a test for names of weights that only the model with its classifier has."""
    timm, name = _library(featurizer), configuration(featurizer).name
    with torch.device("meta"):
        whole = set(timm.create_model(name, pretrained=False).state_dict())
        features = set(timm.create_model(name, pretrained=False, num_classes=0).state_dict())
    return (whole - features).__contains__


def download(featurizer: str, folder: Path) -> dict[str, Tensor]:
    """Return the published weights of a model with its classifier, downloaded by timm. `folder` holds what comes.

    The only function here that reaches the network. Weights with other names or shapes than the model's make it raise.
    """
    model = _library(featurizer).create_model(configuration(featurizer).name, pretrained=True, cache_dir=folder)
    state: dict[str, Tensor] = model.state_dict()
    return state
