"""A stack of models whose featurizers are other than linear layers, computed for all clients at once by `torch.func`.

The featurizer is called as it is, under `vmap` over the clients' parameters; representation and head are those of
`Stack`. A convolution of every client becomes one grouped convolution, which rounds otherwise than single ones. How it
rounds depends on the number of clients too, so whoever makes these stacks must see to it that a result depends on
nothing but its own run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from farfield.models.featurizers import builder_of
from farfield.models.model import Layout, Model
from farfield.models.spec import ModelSpec
from farfield.models.stack import Stack

#: Rows of the trial, and how far the features of a stack may be from those of single models: relative to the largest,
#: and where all are zero but for rounding.
TRIAL_ROWS, TRIAL_TOLERANCE, TRIAL_ROUNDING = 3, 1e-3, 1e-5
_BELOW = "featurizer."


class FunctionalStack(Stack):
    """A stack of models over the rows of `vector`. `model` lends its layers and keeps its own numbers."""

    def __init__(self, model: Model, vector: Tensor, gradient: Tensor | None = None) -> None:
        super().__init__(model.spec, model.layout, vector, gradient)
        self._model = model
        self._below = {name[len(_BELOW) :]: own for name, own in self._named.items() if name.startswith(_BELOW)}

    def _neighbours(self, vector: Tensor, gradient: Tensor) -> Stack:
        return FunctionalStack(self._model, vector, gradient)

    def _through(self, x: Tensor) -> Tensor:
        self._model.train(self.training)
        if not self._below:
            return torch.stack([self._model.featurizer(own) for own in x.unbind()])
        return _features(self._model.featurizer, self._below, x)


def _features(featurizer: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the features of each client's rows, by its own parameters. Random numbers are an error."""

    def of_one(own: dict[str, Tensor], rows: Tensor) -> Tensor:
        given: Tensor = functional_call(featurizer, own, (rows,))
        return given

    features: Tensor = vmap(of_one)(parameters, x)
    return features


#: What the trial of a featurizer came to, by its specification and its builder.
_tried: dict[tuple[ModelSpec, Callable[..., object]], str | None] = {}


def why_not_functional(model: Model) -> str | None:
    """Return why `torch.func` cannot compute a stack of such models, in one phrase; None if it can."""
    spec = model.spec
    if spec.precision != "float32":
        return f"in {spec.precision} a stack would round otherwise than its clients"
    for layer in model.featurizer.modules():
        if isinstance(layer, _BatchNorm):
            return f"the norm policy '{spec.norm}' has BatchNorm, whose statistics are each client's own"
        if isinstance(layer, _DropoutNd) and layer.p:
            return "dropout draws random numbers inside the layers"
    key = spec, builder_of(spec.featurizer)
    if key not in _tried:
        problem = _try(model)
        _tried[key] = problem and f"the featurizer '{spec.featurizer}' {problem}"
    return _tried[key]


def _try(model: Model) -> str | None:
    """Compute the features of two clients and their derivatives; return what is wrong with them.

    An error is not all that can happen: a layer may keep what it saw, or hold parameters where `torch.func` does not
    find them.
    """
    random = torch.Generator().manual_seed(0)
    x = torch.rand((2, TRIAL_ROWS, *model.spec.input_shape), generator=random).to(model.device)
    other = model.vector + (0.5 * model.vector.abs() + 0.01) * _uniform(model.layout, random).to(model.device)
    kept = model.state()
    vectors = torch.stack([model.vector, other])
    training, before = model.training, [(buffer, buffer._version) for buffer in model.featurizer.buffers()]
    stack = FunctionalStack(model, vectors)
    try:
        given = stack._through(x)
        torch.autograd.grad(given.sum(), list(stack._below.values()), allow_unused=True)
        if _buffers_changed(model.featurizer, before):
            return "changes its buffers, and these are each client's own"
        with torch.no_grad():
            for vector, rows, features in zip(vectors, x, given, strict=True):
                model.vector.copy_(vector)
                truth = model.featurizer(rows)
                if truth.shape != features.shape or not _close(features, truth):
                    return "gives other features under torch.func than without it"
    except Exception as error:  # whatever a featurizer does that torch.func does not know
        return f"cannot be computed by torch.func ({type(error).__name__}: {str(error).strip().splitlines()[0]})"[:300]
    finally:
        model.load(kept)
        model.train(training)
    return None


def _uniform(layout: Layout, random: torch.Generator) -> Tensor:
    return 2 * torch.rand(layout.parameters, generator=random) - 1


def _buffers_changed(featurizer: nn.Module, before: Sequence[tuple[Tensor, int]]) -> bool:
    """Return whether a buffer was written to or replaced."""
    now = list(featurizer.buffers())
    return len(now) != len(before) or any(
        buffer is not known or buffer._version != version for buffer, (known, version) in zip(now, before, strict=True)
    )


def _close(given: Tensor, truth: Tensor) -> bool:
    tolerance = TRIAL_TOLERANCE * float(truth.abs().max()) + TRIAL_ROUNDING
    return torch.allclose(given, truth, rtol=0.0, atol=tolerance, equal_nan=True)
