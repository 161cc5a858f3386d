"""Prior: the commonest class of the sources for every row, whatever its columns say. What any model must beat.

Each client counts its training rows per class, and the server adds up the counts. The model that comes of it looks at
no input: its probabilities are the sources' class shares, and a regression predicts the mean label. Nothing is trained,
so there is one round, with all clients, and every selection rule takes it.

Its accuracy on a held-out domain is the share of the sources' commonest class there. Its AUROC is 0.5, because all
scores are the same. A class without a row counts as half a row, so that its loss on an unseen domain stays finite.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.algorithms.supports import No, Supports
from farfield.federation.client import Client
from farfield.federation.federation import Federation, Replies
from farfield.federation.phase import Named, Sends, phase
from farfield.models import Model, ModelSpec, ModelState

#: What a class without a row counts as.
LEAST = 0.5


@register
class Prior(FedAvg):
    """Always the commonest class of the sources' training rows, or their mean label: nothing is trained."""

    name: ClassVar[str] = "prior"
    family: ClassVar[str] = "reference"
    paper: ClassVar[str] = ""
    differences: ClassVar[tuple[str, ...]] = ()
    phases: ClassVar[tuple[str, ...]] = ("count_labels",)
    not_composable: ClassVar[str] = "trains nothing, so there are no updates for a server rule"
    trains: ClassVar[bool] = False
    supports: ClassVar[Supports] = Supports(
        record_privacy=No("counts labels exactly"), client_privacy=No("counts labels exactly")
    )

    class Params(FedAvg.Params):
        def idle(self) -> dict[str, str]:
            # Privacy and secure sums are not idle: counts leave exactly, one by one or in sum.
            acting = ("privacy", "secure_sums", "secure_least", "secure_range")
            return {name: "nothing is trained" for name in FedAvg.Params.model_fields if name not in acting}

    params: Params

    @classmethod
    def model_for(cls, spec: ModelSpec) -> ModelSpec:
        """The smallest model with the inputs and outputs of `spec`: all its parameters but the last bias are zero."""
        return ModelSpec(featurizer="mlp", input_shape=spec.input_shape, outputs=spec.outputs, hidden=(1,))

    def round(self, fed: Federation, state: State) -> State:
        replies = fed.map(self.count_labels, state.model)
        parameters = torch.zeros_like(state.model.parameters)
        parameters[-fed.layout.outputs :] = self._bias(replies).to(parameters.dtype)  # the head's bias comes last
        return state.replace_model(ModelState(parameters, state.model.buffers))

    @phase(
        counts=Sends(
            "outputs",
            "training rows of each class; of the second class where the model has one output",
            server_sees="sum",
            optional=True,
        ),
        total=Sends("outputs", "sum of the training rows' labels, for a regression", server_sees="sum", optional=True),
    )
    def count_labels(self, client: Client, model: Model) -> Named:
        y, outputs = client.training.labels(), model.layout.outputs
        sums = y.double().sum().view(1) if outputs == 1 else torch.bincount(y, minlength=outputs)
        return {"total" if y.is_floating_point() else "counts": sums.to(model.vector.dtype)}

    def _bias(self, replies: Replies) -> Tensor:
        """The last layer's bias: logarithms of the class shares, the log-odds of the second class, or the mean."""
        rows = float(replies.samples.sum())
        if replies.has("total"):
            return replies.sum("total") / rows
        counts = replies.sum("counts")
        if len(counts) == 1:
            return (counts.clamp(min=LEAST) / (rows - counts).clamp(min=LEAST)).log()
        return (counts.clamp(min=LEAST) / rows).log()
