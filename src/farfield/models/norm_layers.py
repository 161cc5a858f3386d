"""What the norm policies put in the place of BatchNorm: in networks of our own, and in those of a library."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.models.resnet import Norm
from farfield.models.spec import ModelSpec

#: BatchNorm's statistics are part of what was pretrained; with another norm the weights mean nothing.
PRETRAINED_NORMS = ("average", "freeze", "local")


class Affine(nn.Module):
    """A weight and a bias a channel, where a model has no normalisation. Zero weights make a residual block start as
    the identity, which a deep network without normalisation needs to train at all."""

    def __init__(self, channels: int, last: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels) if last else torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


def norm_layer(spec: ModelSpec) -> Norm:
    """What the norm policy puts in the place of a BatchNorm layer."""
    if spec.norm == "none":
        return Affine
    if spec.norm == "group":
        return lambda channels, last: nn.GroupNorm(next(g for g in (32, 16, 8, 4, 2, 1) if channels % g == 0), channels)
    return lambda channels, last: nn.BatchNorm2d(channels)


def batch_norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the BatchNorm layers of a network, those of any number of dimensions."""
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def after_norm(norm: nn.Module) -> nn.Module:
    """Return what a layer does after its normalisation: timm's BatchNormAct2d drops out and activates."""
    after = [child for child in norm.children() if not isinstance(child, nn.Identity)]
    return nn.Sequential(*after) if after else nn.Identity()


def replace_norms(network: nn.Module, spec: ModelSpec, *, keep_start: bool = False) -> None:
    """Put the policy's layers where a network that is not ours has BatchNorm; BatchNorm itself stays, with its eps.

    With `keep_start` the new layers start with the weights of the old ones: a network whose residual blocks start as
    the identity, by zeros in their last norm, keeps that.
    """
    if spec.norm in PRETRAINED_NORMS:
        return
    make = norm_layer(spec)
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                residual = getattr(parent, "id_skip", False) and name == "_bn2"
                layer = make(child.num_features, bool(residual))
                if keep_start and child.affine:
                    layer.weight, layer.bias = child.weight, child.bias
                after = after_norm(child)
                setattr(parent, name, layer if isinstance(after, nn.Identity) else nn.Sequential(layer, after))
