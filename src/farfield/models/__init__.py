"""Models: a featurizer and a head, flat parameters, buffers apart, an explicit norm policy."""

from farfield.models import convnets
from farfield.models.losses import predicted_labels, probabilities, task_loss
from farfield.models.model import Layout, Model, ModelState, build_model, hash_states, head_logits
from farfield.models.spec import NORM_POLICIES, ModelSpec

__all__ = [
    "NORM_POLICIES",
    "Layout",
    "Model",
    "ModelSpec",
    "ModelState",
    "build_model",
    "convnets",
    "hash_states",
    "head_logits",
    "predicted_labels",
    "probabilities",
    "task_loss",
]
