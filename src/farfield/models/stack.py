"""As many sets of parameters of one model as there are clients, with the interface that the hooks of a step know.

Every tensor has a leading axis with one entry per client: `model.vector` is (client, parameter), `model(x)` takes
(client, row, …) and gives (client, row, output), a loss has one value per client.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional as F

from farfield.math.stacks import stacked_linear
from farfield.models.model import SIGMA_FLOOR, Layout, Model
from farfield.models.spec import ModelSpec
from farfield.reproducibility.devices import CPU


def why_not_stacked(spec: ModelSpec) -> str | None:
    """Return why a stack of such models would not have the bits of single ones, in one phrase; None if it has."""
    if spec.precision != "float32":
        return f"in {spec.precision} a stack would round otherwise than its clients"
    if spec.featurizer not in ("identity", "mlp"):
        return f"the featurizer '{spec.featurizer}' has other layers than linear ones"
    if spec.featurizer == "mlp" and spec.norm != "none" and spec.hidden:
        return f"the norm policy '{spec.norm}' has normalisation layers"
    if spec.dropout and spec.featurizer == "mlp" and spec.hidden:
        return "dropout draws random numbers inside the layers"
    return None


def stacked_values(values: Sequence[Any], device: torch.device = CPU) -> Any:
    """Values of several clients with a leading axis. One that all share is not copied, and None stays None.

    Tensors stay where they are; numbers that differ become a tensor on `device`.
    """
    first = values[0]
    if first is None:
        return None
    if not isinstance(first, Tensor):
        return first if all(value == first for value in values) else torch.tensor(values, device=device)
    if all(value is first for value in values):
        return first.expand(len(values), *first.shape)
    return torch.stack([*values])


class Random:
    """The random numbers of one client, which most methods never draw."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)


class Stack:
    """A stack of models over the rows of `vector`; `part` gives a stack of some of them, on the same numbers."""

    training = True

    def __init__(self, spec: ModelSpec, layout: Layout, vector: Tensor, gradient: Tensor | None = None) -> None:
        self.spec, self.layout = spec, layout
        self.vector = vector
        self.gradient = torch.empty_like(vector) if gradient is None else gradient
        named = {
            name: vector[:, where].view(len(vector), *layout.shapes[name]).detach().requires_grad_()
            for name, where in layout.slices.items()
        }
        self._named = named
        layers = [_Layer(named, name.removesuffix(".weight")) for name in named if name.endswith(".weight")]
        self._featurizer = [layer for layer in layers if layer.name.startswith("featurizer.")]
        self._gaussian = next((layer for layer in layers if layer.name.startswith("gaussian")), None)
        self.head = StackedHead([layer for layer in layers if layer.name.startswith("head.")])
        self._trainable = list(named.values())
        final = {id(p) for p in (self.head.last.weight, self.head.last.bias) if p is not None}
        self._body = [p for p in self._trainable if id(p) not in final]
        self._parts: dict[tuple[int, int], Stack] = {}
        #: The random numbers of each client.
        self.random: Sequence[Random] = ()

    def part(self, where: slice) -> Stack:
        """The models of some neighbours, on the same numbers."""
        bounds = (where.start, where.stop)
        if bounds == (0, len(self.vector)):
            return self
        if bounds not in self._parts:
            self._parts[bounds] = self._neighbours(self.vector[where], self.gradient[where])
            self._parts[bounds].random = self.random[where]
        self._parts[bounds].training = self.training
        return self._parts[bounds]

    def _neighbours(self, vector: Tensor, gradient: Tensor) -> Stack:
        return Stack(self.spec, self.layout, vector, gradient)

    @property
    def as_model(self) -> Model:
        """This stack where a hook asks for a model: the two have the same interface."""
        return cast(Model, self)

    def train(self, mode: bool = True) -> Stack:
        self.training = mode
        return self

    def eval(self) -> Stack:
        return self.train(False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def predict(self, x: Tensor) -> Tensor:
        """Logits for whoever measures the models."""
        return self(x)

    def features(self, x: Tensor) -> Tensor:
        """What the heads see."""
        if self._gaussian is None:
            return self._through(x)
        return self.draw(*self.represent(x))

    def _through(self, x: Tensor) -> Tensor:
        x = x.flatten(2)
        for layer in self._featurizer:
            x = layer(x).relu()
        return x

    def represent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of a Gaussian representation."""
        if self._gaussian is None:
            raise ValueError("these models have a plain representation")
        mu, raw = self._gaussian(self._through(x)).chunk(2, dim=-1)
        return mu, F.softplus(raw) + SIGMA_FLOOR

    def draw(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """A sample of a Gaussian representation in training, else its mean."""
        return mu + sigma * self.normal(sigma) if self.training else mu

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers, as many as the tensor has, for each client from its own."""
        drawn = torch.empty(like.shape, dtype=like.dtype)
        for random, own in zip(self.random, drawn.unbind(), strict=True):
            torch.randn(own.shape, generator=random.generator, out=own)
        return drawn.to(like.device)

    def integers(self, below: int, like: Tensor) -> Tensor:
        """Whole numbers from 0, as many as the tensor has, for each client from its own."""
        drawn = torch.empty(like.shape, dtype=torch.int64)
        for random, own in zip(self.random, drawn.unbind(), strict=True):
            torch.randint(below, own.shape, generator=random.generator, out=own)
        return drawn.to(like.device)

    def backward(self, loss: Tensor) -> None:
        """Put the gradient of each client's loss into its row of `gradient`."""
        if loss.shape != self.vector.shape[:1]:
            raise ValueError(f"the loss has shape {tuple(loss.shape)}, and a stack has one value per client")
        self._put(_gradients(loss, torch.ones_like(loss), self._trainable))

    def backward_from(self, inputs: Tensor, by_inputs: Tensor, by_final: Tensor) -> None:
        """As `backward`, for losses whose derivatives by the final layer and by what goes into it are known already."""
        body = _gradients(inputs, by_inputs.to(inputs.dtype), self._body) if self._body else []
        self._put([*body, by_final.to(inputs.dtype)])

    def head_gradient(self, loss: Tensor) -> Tensor:
        """The gradient of each client's loss by its head's parameters, flat."""
        named = [parameter for name, parameter in self._named.items() if name.startswith("head.")]
        grads = _gradients(loss, torch.ones_like(loss), named)
        return torch.cat([grad.reshape(len(self.vector), -1) for grad in grads], dim=1)

    def _put(self, grads: Sequence[Tensor]) -> None:
        torch.cat([grad.reshape(len(self.vector), -1) for grad in grads], dim=1, out=self.gradient)


class _Layer:
    """A linear layer of every client."""

    def __init__(self, named: dict[str, Tensor], name: str) -> None:
        self.name = name
        self.weight, self.bias = named[f"{name}.weight"], named.get(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        return stacked_linear(x, self.weight, self.bias)


class StackedHead:
    """The heads: linear, or linear-ReLU-linear. `last` has the weights of the layers that give the logits."""

    def __init__(self, layers: Sequence[_Layer]) -> None:
        self._layers = layers
        self.last = layers[-1]

    def __call__(self, features: Tensor) -> Tensor:
        return self.last(self.before_last(features))

    def before_last(self, features: Tensor) -> Tensor:
        """What the last layers see."""
        for layer in self._layers[:-1]:
            features = layer(features).relu()
        return features


def _gradients(outputs: Tensor, by_outputs: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """As `torch.autograd.grad`, by the engine's own entrance, with zeros for what is not in the graph."""
    grads = _engine_run_backward(
        (outputs,), (by_outputs,), False, False, tuple(parameters), allow_unreachable=True, accumulate_grad=False
    )
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(parameters, grads, strict=True)]
