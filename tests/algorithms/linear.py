"""A risk whose gradient can be written down: the mean of w·x, so the gradient is the mean row, whatever w is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms import FedAvg, method, params_of
from farfield.federation import Batch, Reply
from farfield.federation.federation import Replies
from farfield.models import Model, ModelSpec, ModelState
from farfield.tasks.task import Domain

#: Two weights and nothing else.
SPEC = ModelSpec(featurizer="identity", input_shape=(2,), outputs=1, hidden=(), head_bias=False)


class LinearRisk:
    def loss(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        return model(batch.x).mean()  # type: ignore[no-any-return]


def linear(name: str, **settings: Any) -> FedAvg:
    """The method of that name on the linear risk."""
    cls = method(name)
    return type(f"Linear{cls.__name__}", (LinearRisk, cls), {})(params_of(name)(**settings))  # type: ignore[no-any-return]


def site(name: str, gradient: Sequence[float], rows: int = 2) -> Domain:
    """A client whose every batch has this gradient."""
    return Domain(name, torch.tensor([list(gradient)] * rows), torch.zeros(rows, dtype=torch.int64))


def weights(*values: float) -> ModelState:
    return ModelState(torch.tensor(values), torch.zeros(0))


def replies(*values: dict[str, Any], samples: Sequence[int] | None = None) -> Replies:
    """Replies as if they had come from clients 0, 1, …"""
    counts = samples or [1] * len(values)
    made = [Reply(i, f"site-{i}", n, v) for i, (n, v) in enumerate(zip(counts, values, strict=True))]
    return Replies(tuple(made), registered=len(made))
