"""Models of timm as featurizers: `ModelSpec(featurizer="timm:resnet18", …)`.

A model keeps its layers and their names as timm has them. Its pixels are normalised by timm's own mean and deviation,
its classifier is left out, and the norm policies apply to its BatchNorm layers as they do to the backbones here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from farfield.models.backbones import Backbone, Pixels, check_norm_fits_weights, with_dropout
from farfield.models.featurizers import library
from farfield.models.norm_layers import PRETRAINED_NORMS, batch_norms, replace_norms
from farfield.models.spec import ModelSpec
from farfield.models.timm_library import Configuration, TimmError, classifier_names, configuration, create
from farfield.models.weights import NONE, load_into


@library("timm")
def timm_backbone(spec: ModelSpec) -> tuple[nn.Module, int]:
    known = configuration(spec.featurizer)
    _check_images(spec, known)
    network = _created(spec, known)
    if batch_norms(network):
        check_norm_fits_weights(spec)
        _check_norms(spec, network)
    _check_trainable(spec, network)
    if spec.weights != NONE:
        _load(network, spec)
    replace_norms(network, spec, keep_start=True)
    backbone = Backbone(network, Pixels(known.mean, known.deviation))
    return with_dropout(backbone, spec), _count_features(spec, network, known)


def _load(network: nn.Module, spec: ModelSpec) -> None:
    """Fill the network from the weight file; refuse constants in it that a saved model, built anew, would not have."""
    before = {name: value.clone() for name, value in network.named_buffers()}
    load_into(network, spec.featurizer, spec.weights, ignore=classifier_names(spec.featurizer))
    for name, value in network.named_buffers():
        statistic = name.rpartition(".")[2].startswith(("running_", "num_batches_tracked"))
        if not statistic and not torch.equal(value, before[name]):
            raise TimmError(
                f"the weights of '{spec.featurizer}' have constants of their own ('{name}'), which a saved model would "
                "lose; choose another model"
            )


def _check_images(spec: ModelSpec, known: Configuration) -> None:
    channels = sorted({1, known.shape[0]})
    if len(spec.input_shape) != 3 or spec.input_shape[0] not in channels:
        raise TimmError(
            f"'timm:{known.name}' needs images of {' or '.join(map(str, channels))} channels "
            f"(channels, height, width), not {spec.input_shape}"
        )
    if known.fixed_size and spec.weights != NONE and spec.input_shape[1:] != known.shape[1:]:
        raise TimmError(
            f"'timm:{known.name}' was pretrained on images of {_size(known.shape)} and takes no other size, and these "
            f"have {_size(spec.input_shape)}: give --image-size {known.shape[1]}, or model.weights=none to train from "
            "scratch"
        )


def _created(spec: ModelSpec, known: Configuration) -> nn.Module:
    if not known.fixed_size or spec.input_shape[1:] == known.shape[1:]:
        return create(spec.featurizer)
    height, width = spec.input_shape[1:]
    try:
        return create(spec.featurizer, (height, width))
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise _wrong_size(spec, known, error) from error


def _check_norms(spec: ModelSpec, network: nn.Module) -> None:
    """Refuse to replace a BatchNorm of vectors: GroupNorm over single numbers would make constants of them."""
    if spec.norm not in PRETRAINED_NORMS and any(not isinstance(m, nn.BatchNorm2d) for m in batch_norms(network)):
        raise TimmError(
            f"'{spec.featurizer}' has BatchNorm layers on vectors, which model.norm={spec.norm} cannot replace: set "
            f"model.norm={', '.join(PRETRAINED_NORMS[:-1])} or {PRETRAINED_NORMS[-1]}"
        )


def _check_trainable(spec: ModelSpec, network: nn.Module) -> None:
    """Refuse what no norm policy covers, and parameters that do not train and so would not be in an update."""
    known = set(batch_norms(network))
    other = next((m for m in network.modules() if "running_var" in m._buffers and m not in known), None)
    if other is not None:
        raise TimmError(
            f"'{spec.featurizer}' has layers of {type(other).__name__}, whose running statistics no norm policy "
            "covers; choose another model"
        )
    fixed = next((name for name, value in network.named_parameters() if not value.requires_grad), None)
    if fixed is not None:
        raise TimmError(f"'{spec.featurizer}' has parameters that do not train ('{fixed}'); choose another model")


def _count_features(spec: ModelSpec, network: nn.Module, known: Configuration) -> int:
    """Return how many features an image of this size gives, by a pass without a single number."""
    state = {name: value.to("meta") for name, value in network.state_dict(keep_vars=False).items()}
    state |= {name: value.to("meta") for name, value in network.named_buffers()}
    images = torch.empty((1, known.shape[0], *spec.input_shape[1:]), device="meta")
    training = network.training
    try:
        with torch.no_grad():
            features = functional_call(network.eval(), state, (images,))
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        raise _wrong_size(spec, known, error) from error
    finally:
        network.train(training)
    if not isinstance(features, Tensor) or features.dim() != 2:
        raise TimmError(f"'{spec.featurizer}' gives no vector of features for an image; choose another model")
    return int(features.shape[1])


def _wrong_size(spec: ModelSpec, known: Configuration, error: Exception) -> TimmError:
    first = (str(error).split("\n")[0] or type(error).__name__)[:200]
    return TimmError(
        f"'timm:{known.name}' cannot take images of {_size(spec.input_shape)} ({first}); it was made for "
        f"{_size(known.shape)}: give --image-size {known.shape[1]}"
    )


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} × {shape[2]}"
