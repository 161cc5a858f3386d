"""Models: a featurizer and a head, flat parameters, buffers apart, an explicit norm policy."""

from farfield.models import backbones, convnets
from farfield.models.featurizers import BACKBONES
from farfield.models.losses import predicted_labels, probabilities, task_loss
from farfield.models.model import Layout, Model, ModelState, build_model, hash_states, head_logits
from farfield.models.spec import NORM_POLICIES, ModelSpec
from farfield.models.stack import Stack, stacked_values, why_not_stacked
from farfield.models.weights import WeightsError, pin

__all__ = [
    "BACKBONES",
    "NORM_POLICIES",
    "Layout",
    "Model",
    "ModelSpec",
    "ModelState",
    "Stack",
    "WeightsError",
    "backbones",
    "build_model",
    "convnets",
    "hash_states",
    "head_logits",
    "pin",
    "predicted_labels",
    "probabilities",
    "stacked_values",
    "task_loss",
    "why_not_stacked",
]
