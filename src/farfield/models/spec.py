"""What a model is made of, as plain data: it can be written to TOML, printed, and sent to a site."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from farfield.reproducibility.precision import Precision

NormPolicy = Literal["none", "average", "freeze", "local", "group"]

#: What each norm policy means, and what a client that was never there uses.
NORM_POLICIES: dict[str, str] = {
    "none": "no normalisation layers; an unseen client uses the model as it is",
    "average": "BatchNorm; running statistics are averaged over the clients by sample count, "
    "and an unseen client uses that average",
    "freeze": "BatchNorm in evaluation mode always; statistics stay as initialised (affine weights train), "
    "and an unseen client uses the same",
    "local": "BatchNorm; statistics stay at each client and are never sent; "
    "an unseen client uses the statistics of its own batch",
    "group": "GroupNorm instead of BatchNorm; there are no statistics to share",
}


class ModelSpec(BaseModel):
    """A featurizer and a head by name and size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    featurizer: str = Field(
        "mlp",
        description="'identity', 'mlp', 'convnet'; a paper's: 'mnist-cnn', 'fedilc-cnn', 'fedavg-cnn'; a backbone: "
        "'resnet18', 'resnet50', 'efficientnet-lite0', or 'timm:NAME' for any model of timm",
    )
    input_shape: tuple[int, ...] = Field(description="shape of one example, without the batch")
    outputs: int = Field(ge=1, description="logits; 1 means binary cross-entropy, or one regression target")
    hidden: tuple[int, ...] = Field((64,), description="widths of the featurizer's layers (channels for 'convnet')")
    head: Literal["linear", "mlp"] = Field("linear", description="one linear layer, or linear-ReLU-linear")
    head_hidden: int = Field(64, ge=1, description="hidden width of an 'mlp' head")
    head_bias: bool = Field(True, description="whether the head's last layer has a bias")
    norm: NormPolicy = Field("none", description="normalisation layers and what happens to their statistics")
    representation: Literal["plain", "gaussian"] = Field(
        "plain", description="features as they are, or a mean and a standard deviation that training samples from"
    )
    test_samples: int = Field(
        0, ge=0, description="of a Gaussian representation at test time: 0 for its mean, n to average n predictions"
    )
    init: Literal["torch", "xavier"] = Field(
        "torch", description="first weights of linear layers: PyTorch's own, or Xavier-uniform with zero biases"
    )
    head_init: Literal["same", "kaiming"] = Field(
        "same", description="first weights of the head's layers: as init says, or Kaiming-normal (fan-in, for ReLU)"
    )
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="dropout after each hidden layer of the featurizer")

    weights: str = Field(
        "auto",
        description="pretrained weights of a backbone: 'auto' for those that are here, 'none', or a file; "
        "records hold the file's name and sha256",
    )

    precision: Precision = Field(
        "float32", description="in which the layers below the head compute: 'float32', or 'bfloat16' by autocast"
    )

    @model_serializer(mode="wrap")
    def _without_usual_precision(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Records and manifests from before there was a choice have no precision, and they mean float32.
        written: dict[str, Any] = handler(self)
        if written.get("precision") == "float32":
            del written["precision"]
        return written

    @model_validator(mode="after")
    def _sizes_are_positive(self) -> ModelSpec:
        if not self.input_shape or min(self.input_shape) < 1:
            raise ValueError(f"input_shape must be positive sizes, not {self.input_shape}")
        if self.hidden and min(self.hidden) < 1:
            raise ValueError(f"hidden must be positive widths, not {self.hidden}")
        return self

    @property
    def input_size(self) -> int:
        return prod(self.input_shape)
