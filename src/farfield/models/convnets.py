"""The convolutional featurizers of the papers, layer by layer as their published code has them."""

from __future__ import annotations

from torch import nn

from farfield.models.featurizers import _dropout, _norm, featurizer
from farfield.models.spec import ModelSpec


def _check(spec: ModelSpec, name: str, widths: int, least: int) -> None:
    if len(spec.input_shape) != 3:
        raise ValueError(f"'{name}' needs images (channels, height, width), not inputs of shape {spec.input_shape}")
    if len(spec.hidden) != widths:
        raise ValueError(f"'{name}' has {widths} widths, but model.hidden gives {len(spec.hidden)}: {spec.hidden}")
    if min(spec.input_shape[1:]) < least:
        raise ValueError(f"'{name}' needs images of at least {least}×{least} pixels, not {spec.input_shape[1:]}")


@featurizer("mnist-cnn")
def _mnist_cnn(spec: ModelSpec) -> tuple[nn.Module, int]:
    """FedIIR's for digits: four 3×3 convolutions, each with ReLU and then the norm; the second halves; mean pool."""
    _check(spec, "mnist-cnn", 4, 2)
    layers: list[nn.Module] = []
    channels = spec.input_shape[0]
    for number, hidden in enumerate(spec.hidden):
        layers += [nn.Conv2d(channels, hidden, 3, stride=2 if number == 1 else 1, padding=1), nn.ReLU()]
        layers += [*_norm(spec, hidden, nn.BatchNorm2d), *_dropout(spec)]
        channels = hidden
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels


@featurizer("fedilc-cnn")
def _fedilc_cnn(spec: ModelSpec) -> tuple[nn.Module, int]:
    """FedILC's: three of 3×3 convolution, ReLU, norm, max pool, the second with stride 2; then a bare linear layer."""
    _check(spec, "fedilc-cnn", 4, 16)
    layers: list[nn.Module] = []
    channels, height, width = spec.input_shape
    for number, hidden in enumerate(spec.hidden[:3]):
        stride = 2 if number == 1 else 1
        layers += [nn.Conv2d(channels, hidden, 3, stride=stride, padding=1), nn.ReLU()]
        layers += [*_norm(spec, hidden, nn.BatchNorm2d), nn.MaxPool2d(2), *_dropout(spec)]
        channels = hidden
        height, width = (-(-side // stride) // 2 for side in (height, width))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, spec.hidden[3])), spec.hidden[3]


@featurizer("fedavg-cnn")
def _fedavg_cnn(spec: ModelSpec) -> tuple[nn.Module, int]:
    """The one of McMahan et al. that FedOMG uses: two of 5×5 convolution, ReLU and max pool, then a hidden layer."""
    _check(spec, "fedavg-cnn", 3, 16)
    layers: list[nn.Module] = []
    channels, height, width = spec.input_shape
    for hidden in spec.hidden[:2]:
        layers += [nn.Conv2d(channels, hidden, 5), *_norm(spec, hidden, nn.BatchNorm2d), nn.ReLU(), nn.MaxPool2d(2)]
        channels = hidden
        height, width = ((side - 4) // 2 for side in (height, width))
    layers += [nn.Flatten(), nn.Linear(channels * height * width, spec.hidden[2]), nn.ReLU(), *_dropout(spec)]
    return nn.Sequential(*layers), spec.hidden[2]
