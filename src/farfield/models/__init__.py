"""Models: a featurizer and a head, flat parameters, buffers apart, an explicit norm policy."""

from farfield.models import backbones, convnets, timm_backbones
from farfield.models.featurizers import BACKBONES, is_backbone
from farfield.models.functional_stack import FunctionalStack, why_not_functional
from farfield.models.losses import predicted_labels, probabilities, task_loss
from farfield.models.model import Layout, Model, ModelState, build_model, hash_states, head_logits
from farfield.models.spec import NORM_POLICIES, ModelSpec
from farfield.models.stack import Random, Stack, stacked_values, why_not_stacked
from farfield.models.timm_library import MissingTimm, TimmError, native_shape, resolved_name
from farfield.models.weights import WeightsError, pin

__all__ = [
    "BACKBONES",
    "NORM_POLICIES",
    "FunctionalStack",
    "Layout",
    "MissingTimm",
    "Model",
    "ModelSpec",
    "ModelState",
    "Random",
    "Stack",
    "TimmError",
    "WeightsError",
    "backbones",
    "build_model",
    "convnets",
    "hash_states",
    "head_logits",
    "is_backbone",
    "native_shape",
    "pin",
    "predicted_labels",
    "probabilities",
    "resolved_name",
    "stacked_values",
    "task_loss",
    "timm_backbones",
    "why_not_functional",
    "why_not_stacked",
]
