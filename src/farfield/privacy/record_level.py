"""Record-level privacy: DP-SGD as the local training of a client.

    Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. Deep Learning with Differential Privacy. CCS 2016.

A step draws each row with probability q = B/n and for itself (an empty batch is a batch), cuts each drawn row's
gradient to the length C, adds noise N(0, (zC)²) to the sum, and divides by B. What the method does with that gradient
afterwards (momentum, a proximal term, a control variate) and what the server makes of the update cost no further
privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor

from farfield.federation.client import Batch, Client
from farfield.federation.local_optimizer import LocalOptimizer
from farfield.federation.local_training import Local, TrainsLocally
from farfield.federation.phase import Named
from farfield.models import Model
from farfield.privacy.noise import Source, source_of
from farfield.privacy.row_gradients import clipped_sum
from farfield.tasks.augment import AUGMENTATIONS


class LosesByRow(TrainsLocally, Protocol):
    """The hooks of a method whose local loss is a mean over rows."""

    @property
    def params(self) -> Any: ...
    def row_losses(self, model: Model, batch: Batch, **shared: Any) -> Tensor: ...
    def epochs(self, round: int) -> int: ...


def sampling_rate(batch_size: int, rows: int) -> float:
    """Return q, the probability with which each row is in a batch; 1 for a batch of all rows."""
    return min(1.0, batch_size / rows) if batch_size else 1.0


def steps_in_round(local_steps: int | None, epochs: int, batch_size: int, rows: int) -> int:
    """Return the number of local steps: as given, or as many as an epoch of batches would have."""
    return local_steps if local_steps is not None else epochs * ceil(1 / sampling_rate(batch_size, rows) - 1e-9)


class RecordLevelTraining:
    """The hooks of a method with private batches and gradients in place of its own. The other hooks are the method's.

    For one phase at one client: the noise comes from that client's source.
    """

    def __init__(self, method: LosesByRow, client: Client) -> None:
        self._method, self._client = method, client
        self._source = source_of(client, "privacy")
        p = method.params
        self._clip, self._noise = float(p.clip), float(p.noise)
        self._rate = sampling_rate(p.batch_size, client.samples)
        #: The number of rows that a batch has on average, which the sum is divided by.
        self._expected = self._rate * client.samples

    @property
    def train(self) -> Any:
        return self._method.train

    def class_weights(self, client: Client, model: Model) -> Tensor | None:
        return None  # they would depend on all rows at once; `supports` refuses the setting

    def local_optimizer(self) -> LocalOptimizer:
        return self._method.local_optimizer()

    def before_training(self, client: Client, model: Model, **shared: Any) -> Mapping[str, Tensor]:
        return self._method.before_training(client, model, **shared)

    def after_training(self, client: Client, model: Model, local: Local) -> Named:
        return self._method.after_training(client, model, local)

    def adjust(self, gradient: Tensor, local: Local) -> None:
        self._method.adjust(gradient, local)

    def batches(self, client: Client, model: Model) -> Iterator[Batch]:
        """Yield batches in which each row is with probability q, whatever else is in them."""
        p = self._method.params
        augmentation = AUGMENTATIONS.get(client.augment)
        draws = client.generator("augment") if augmentation is not None else None
        steps = steps_in_round(p.local_steps, self._method.epochs(client.round), p.batch_size, client.samples)
        for _ in range(steps):
            batch = client.training.take(self._source.chosen(client.samples, self._rate))
            if augmentation is not None and draws is not None and len(batch.y):
                batch = Batch(augmentation(batch.x, draws), batch.y)
            client.steps += 1
            # The mean, not what was drawn: the size of a batch is secret, and the count leaves with the reply.
            client.examples += round(self._expected)
            yield batch

    def local_gradient(self, model: Model, batch: Batch, local: Local) -> Tensor:
        """Put the private gradient into `model.gradient`. No loss is returned, because none may leave."""
        total = clipped_sum(model, lambda m, b: self._method.row_losses(m, b, **local.shared), batch, self._clip)
        model.gradient.copy_(with_noise(total, self._clip, self._noise, self._source)).div_(self._expected)
        return model.vector.new_zeros(())


def private_full_gradient(method: LosesByRow, client: Client, model: Model) -> Tensor:
    """Return the mean gradient over all rows, each cut to the length C, with noise: a step with q = 1."""
    p = method.params
    total = torch.zeros_like(model.vector)
    for batch in client.sweep(client.training):
        total += clipped_sum(model, method.row_losses, batch, p.clip)
    return with_noise(total, p.clip, p.noise, source_of(client, "privacy")) / client.samples


def with_noise(total: Tensor, clip: float, noise: float, source: Source) -> Tensor:
    """Return a sum to which one row or one client adds at most `clip`, with Gaussian noise of `noise` times that.

    It is added in float64 and rounded once. Noise that is rounded to float32 before has gaps: a sum of zero never gives
    numbers that lie in them, any other sum does, and a few dozen entries tell the two apart without doubt.
    """
    if not noise:
        return total
    noised: Tensor = total.cpu().double() + source.normal(tuple(total.shape)).mul_(noise * clip)
    return noised.to(total.dtype).to(total.device)
