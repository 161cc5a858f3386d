"""Featurizers by name: what turns an input into a feature vector. Add one with `@featurizer("name")`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from torch import nn

from farfield.models.spec import ModelSpec

#: A builder returns the module and the number of features it gives.
Builder = Callable[[ModelSpec], tuple[nn.Module, int]]
FEATURIZERS: dict[str, Builder] = {}
#: Those that pretrained weights exist for.
BACKBONES: list[str] = []
#: Builders of a library's models, by what stands before the colon: 'timm' for 'timm:resnet18'. All are backbones.
LIBRARIES: dict[str, Builder] = {}


def featurizer(name: str, pretrained: bool = False) -> Callable[[Builder], Builder]:
    def add(builder: Builder) -> Builder:
        FEATURIZERS[name] = builder
        if pretrained:
            BACKBONES.append(name)
        return builder

    return add


def library(name: str) -> Callable[[Builder], Builder]:
    def add(builder: Builder) -> Builder:
        LIBRARIES[name] = builder
        return builder

    return add


def is_backbone(name: str) -> bool:
    """Whether pretrained weights exist for a featurizer."""
    return name in BACKBONES or _library_of(name) in LIBRARIES


def builder_of(name: str) -> Builder:
    """Return what builds a featurizer; a wrong name gets a suggestion."""
    if _library_of(name) in LIBRARIES:
        return LIBRARIES[_library_of(name)]
    if name not in FEATURIZERS:
        near = difflib.get_close_matches(name, FEATURIZERS, n=1)
        known = ", ".join([*FEATURIZERS, *(f"{prefix}:NAME" for prefix in LIBRARIES)])
        hint = f"did you mean '{near[0]}'?" if near else f"choose one of {known}"
        raise ValueError(f"unknown featurizer '{name}'; {hint}")
    return FEATURIZERS[name]


def _library_of(name: str) -> str:
    prefix, colon, _ = name.partition(":")
    return prefix if colon else ""


@featurizer("identity")
def _identity(spec: ModelSpec) -> tuple[nn.Module, int]:
    return nn.Flatten(), spec.input_size


@featurizer("mlp")
def _mlp(spec: ModelSpec) -> tuple[nn.Module, int]:
    layers: list[nn.Module] = [nn.Flatten()]
    width = spec.input_size
    for hidden in spec.hidden:
        layers.append(nn.Linear(width, hidden))
        layers += [*_norm(spec, hidden, nn.BatchNorm1d), nn.ReLU(), *_dropout(spec)]
        width = hidden
    return nn.Sequential(*layers), width


@featurizer("convnet")
def _convnet(spec: ModelSpec) -> tuple[nn.Module, int]:
    """3×3 convolutions, ReLU, then the norm (FedIIR's order); every second layer halves the image; mean pool."""
    if len(spec.input_shape) != 3:
        raise ValueError(f"'convnet' needs images (channels, height, width), not inputs of shape {spec.input_shape}")
    layers: list[nn.Module] = []
    channels = spec.input_shape[0]
    for i, hidden in enumerate(spec.hidden):
        layers += [nn.Conv2d(channels, hidden, 3, stride=2 if i % 2 else 1, padding=1), nn.ReLU()]
        layers += [*_norm(spec, hidden, nn.BatchNorm2d), *_dropout(spec)]
        channels = hidden
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels


def _norm(spec: ModelSpec, width: int, batch_norm: type[nn.Module]) -> list[nn.Module]:
    if spec.norm == "none":
        return []
    if spec.norm == "group":
        # A group of a single value would be normalised to a constant; images have their pixels besides.
        least = 8 if batch_norm is nn.BatchNorm1d else 1
        groups = next(g for g in (8, 4, 2, 1) if width % g == 0 and (width // g >= least or g == 1))
        return [nn.GroupNorm(groups, width)]
    return [batch_norm(width)]


def _dropout(spec: ModelSpec) -> list[nn.Module]:
    return [nn.Dropout(spec.dropout)] if spec.dropout else []
