"""How models do on a domain that took no part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.federation.client import Rows
from farfield.models import Model, ModelSpec, ModelState, build_model
from farfield.protocol.metrics import logit_metrics, regression_metrics
from farfield.protocol.site_figures import classification_site, regression_site
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.randomness import derive_seed, generators_kept, seed_layers
from farfield.tasks.task import Domain, TaskKind


class HeldOut:
    """A held-out domain and the only object that can measure on it. Nothing that trains or selects is given one.

    `outputs` turns what a regression's model gives into the units of the domain's labels. A class number beyond the
    model's is of a class that no source has (`metrics.logit_metrics`). Several held-out domains can share one `model`,
    into which the measured states are loaded. `classes` names the classes in the figures of a site, `unseen` the rows
    of classes that the model cannot name. `device` is where the models are computed; the metrics are on the CPU.
    """

    def __init__(
        self,
        domain: Domain,
        kind: TaskKind,
        spec: ModelSpec,
        outputs: Callable[[Tensor], Tensor] = lambda given: given,
        model: Model | None = None,
        *,
        classes: Sequence[str] = (),
        unseen: Mapping[str, int] | None = None,
        device: torch.device = CPU,
    ) -> None:
        self._rows = Rows({domain.name: domain}, [(domain.name, torch.arange(len(domain)))], device)
        self._labels = domain.y.numpy()
        self._kind = kind
        self._outputs = outputs
        self._classes, self._unseen = classes, unseen
        self._model = build_model(spec, seed=0) if model is None else model

    def measure(self, models: Sequence[ModelState]) -> dict[str, float]:
        """The metrics of a model; of several models, the mean of each metric over them."""
        return self._mean([self._metrics(self._predicted(state)) for state in models])

    def measure_with_site(self, models: Sequence[ModelState]) -> dict[str, Any]:
        """As `measure`, and under "site" what a validation report says of this site; None there of several models."""
        predicted = [self._predicted(state) for state in models]
        metrics = self._mean([self._metrics(outputs) for outputs in predicted])
        return {**metrics, "site": self._site(predicted[0]) if len(predicted) == 1 else None}

    @staticmethod
    def _mean(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
        shared = [name for name in measured[0] if all(name in m for m in measured)]
        return {name: float(np.mean([m[name] for m in measured])) for name in shared}

    def _predicted(self, state: ModelState) -> Tensor:
        self._model.load(state)
        outputs = predict(self._model, self._rows)
        return self._outputs(outputs).squeeze(-1) if self._kind == "regression" else outputs

    def _site(self, outputs: Tensor) -> dict[str, Any]:
        if self._kind == "regression":
            return regression_site(outputs.numpy(), self._labels)
        return classification_site(outputs.numpy(), self._labels, self._classes, self._unseen)

    def _metrics(self, outputs: Tensor) -> dict[str, float]:
        if self._kind == "regression":
            return regression_metrics(outputs.numpy(), self._labels)
        return logit_metrics(outputs.numpy(), self._labels)


def predict(model: Model, rows: Rows) -> Tensor:
    """The model's outputs on every row, in large batches, as for a client that took no part. They are on the CPU.

    The same model and rows give the same outputs, also where the model samples its representation.
    """
    model.on(rows.device).eval_unseen()
    with torch.no_grad(), generators_kept(rows.device):
        seed_layers(rows.device, derive_seed("test samples"))
        # Parts of about equal size: statistics of a batch of one row would be none.
        split = torch.arange(len(rows)).tensor_split(-(-len(rows) // rows.at_once))
        parts = [model.predict(rows.take(part).x) for part in split]
    return torch.cat(parts).to(CPU)
