"""FedCiR's generator: features made of a label and noise, trained to please the heads that the clients sent.

FC-BN-ReLU-FC as in the paper, on flat parameters, so that it is checkpointed and broadcast like everything else. The
first layer has no bias: the normalisation after it would take it out again. In training the normalisation uses the
batch; afterwards `statistics` holds exact means and variances over many draws, so there is no running average to lag
behind a generator that is trained for a few steps a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.math import adam_step
from farfield.math.stacks import add_product, product

_EPSILON = 1e-5


def consensus_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Eq. (15): −log Σ_k p(k) p̂_k(y|z), mean over rows. `logits` are [client, row, output], `weights` p(k).

    Probabilities are averaged inside the logarithm, neither logits nor losses. One output means two classes.
    """
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=-1)
    chosen = logits.log_softmax(-1)[:, torch.arange(len(labels)), labels]
    return -torch.logsumexp(chosen + weights.to(chosen.dtype).log().unsqueeze(1), dim=0).mean()


@dataclass(frozen=True)
class Generator:
    """The shape of a generator. Its parameters are a flat vector that is passed in."""

    classes: int
    noise: int
    hidden: int
    features: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """First weight, scale and shift of the normalisation, second weight and bias."""
        h = self.hidden
        return (h * (self.classes + self.noise), h, h, self.features * h, self.features)

    def parts(self, parameters: Tensor) -> tuple[Tensor, ...]:
        """Views of the vector, in the order of `sizes`; the weights as matrices."""
        first, scale, shift, second, bias = torch.split_with_sizes(parameters, self.sizes, dim=-1)
        lead = parameters.shape[:-1]
        return first.view(*lead, self.hidden, -1), scale, shift, second.view(*lead, -1, self.hidden), bias

    def initial(self, rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Uniform within 1/√fan-in, as torch's linear layers; the normalisation starts as the identity."""
        bounds = ((self.classes + self.noise) ** -0.5, 0.0, 0.0, self.hidden**-0.5, self.hidden**-0.5)
        parts = [
            bound * (2 * torch.rand(size, generator=rng, dtype=dtype) - 1)
            for size, bound in zip(self.sizes, bounds, strict=True)
        ]
        parts[1] = torch.ones(self.hidden, dtype=dtype)
        return torch.cat(parts)

    def draw(self, labels: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
        """One input per label: the label one-hot, and standard normal noise."""
        return self.inputs(labels, torch.randn((len(labels), self.noise), generator=rng, dtype=dtype))

    def inputs(self, labels: Tensor, noise: Tensor) -> Tensor:
        """Inputs for labels and their noise, of one client or of a stack of clients."""
        return torch.cat([F.one_hot(labels, self.classes).to(noise.dtype), noise], dim=-1)

    def trained(
        self,
        parameters: Tensor,
        slots: Mapping[str, Tensor],
        judge: Callable[[Tensor, Tensor], Tensor],
        rng: torch.Generator,
        *,
        steps: int,
        batch: int,
        lr: float,
        decay: float = 0.0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Parameters and Adam's slots after some steps on `judge(features, labels)`, with uniform labels."""
        slots = {name: t.to(parameters.dtype) if t.is_floating_point() else t for name, t in slots.items()}
        for _ in range(steps):
            labels = torch.randint(self.classes, (batch,), generator=rng)
            inputs = self.draw(labels, parameters.dtype, rng)
            variable = parameters.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(judge(self(variable, inputs), labels), variable)
            # torch.optim.Adam with its own defaults, as a pure function.
            parameters, slots = adam_step(
                parameters, -gradient, slots, lr, 0.9, 0.999, 1e-8, bias_correction=True, weight_decay=decay
            )
        return parameters, slots

    def statistics(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Mean and variance of the hidden layer over these inputs, as the two rows of a table."""
        before = inputs @ self.parts(parameters)[0].T
        return torch.stack([before.mean(0), before.var(0, unbiased=False)])

    def __call__(self, parameters: Tensor, inputs: Tensor, statistics: Tensor | None = None) -> Tensor:
        """Generated features; normalised by `statistics`, or by those of the inputs themselves.

        For a stack of clients every argument has a leading axis, and statistics are given.
        """
        first, scale, shift, second, bias = self.parts(parameters)
        mean, variance = self.statistics(parameters, inputs) if statistics is None else statistics.unbind(-2)
        before = product(inputs, first.mT) - mean.unsqueeze(-2)
        normalised = before * (variance + _EPSILON).rsqrt().unsqueeze(-2)
        hidden = F.relu(normalised * scale.unsqueeze(-2) + shift.unsqueeze(-2))
        return add_product(bias.unsqueeze(-2), hidden, second.mT)
