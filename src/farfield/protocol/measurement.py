"""How models do on a domain that took no part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from farfield.federation.client import Rows
from farfield.models import Model, ModelSpec, ModelState, build_model
from farfield.protocol.metrics import logit_metrics, regression_metrics
from farfield.reproducibility.randomness import derive_seed
from farfield.tasks.task import Domain, TaskKind


class HeldOut:
    """A held-out domain and the only object that can measure on it. Nothing that trains or selects is given one.

    `outputs` turns what a regression's model gives into the units of the domain's labels. A class number beyond the
    model's is of a class that no source has (`metrics.logit_metrics`). Several held-out domains can share one `model`,
    into which the measured states are loaded.
    """

    def __init__(
        self,
        domain: Domain,
        kind: TaskKind,
        spec: ModelSpec,
        outputs: Callable[[Tensor], Tensor] = lambda given: given,
        model: Model | None = None,
    ) -> None:
        self._rows = Rows({domain.name: domain}, [(domain.name, torch.arange(len(domain)))])
        self._labels = domain.y.numpy()
        self._kind = kind
        self._outputs = outputs
        self._model = build_model(spec, seed=0) if model is None else model

    def measure(self, models: Sequence[ModelState]) -> dict[str, float]:
        """The metrics of a model; of several models, the mean of each metric over them."""
        measured = [self._measure(state) for state in models]
        shared = [name for name in measured[0] if all(name in m for m in measured)]
        return {name: float(np.mean([m[name] for m in measured])) for name in shared}

    def _measure(self, state: ModelState) -> dict[str, float]:
        self._model.load(state)
        outputs = predict(self._model, self._rows)
        if self._kind == "regression":
            return regression_metrics(self._outputs(outputs).squeeze(-1).numpy(), self._labels)
        return logit_metrics(outputs.numpy(), self._labels)


def predict(model: Model, rows: Rows) -> Tensor:
    """The model's outputs on every row, in large batches, as for a client that took no part.

    The same model and rows give the same outputs, also where the model samples its representation.
    """
    model.eval_unseen()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("test samples"))
        # Parts of about equal size: statistics of a batch of one row would be none.
        split = torch.arange(len(rows)).tensor_split(-(-len(rows) // rows.at_once))
        parts = [model.predict(rows.take(part).x) for part in split]
    return torch.cat(parts)
