"""Worked examples: the second opinion that every method brings, and that the battery compares the method with.

    @worked_example("fedprox", mu=0.5)
    def some_rounds(toy, p):
        w = toy.start
        for cohort in toy.rounds:
            ends = [
                toy.sgd(w, c.batches, p.lr, lambda v, x, y: toy.gradient(v, x, y) + p.mu * (v - w)) for c in cohort
            ]
            w = sum(c.share * end for c, end in zip(cohort, ends))
        return w

The function computes naively, in plain torch, what the method should give on a toy: the paper's formulas once more,
without the method's own code and without `farfield.math`. The battery runs the method on the same toy (the same start,
the same batches, float64) and compares the two. An example of numbers from a paper or by hand has another form:

    @by_hand("fedomg", kappa=0.5)
    def three_updates(algorithm):
        ...
        return what_the_algorithm_gives, torch.tensor([1.0, -0.25])

Examples stand in the file of a method, or in a file of their own that is imported with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from farfield.federation.client import Batch, Client

Function = TypeVar("Function", bound=Callable[..., Any])
#: The gradient at the parameters `v` on a batch: gradient(v, x, y).
BatchGradient = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ToyClient:
    """A client of the toy in one round."""

    id: int
    #: All its training rows.
    x: Tensor
    y: Tensor
    #: Its share of the training rows of this round's cohort.
    share: float
    #: Its mini-batches of local training in this round, as the example's `batch_size`, `local_epochs` and `local_steps`
    #: say.
    batches: tuple[Batch, ...]
    #: The client as a phase sees it, by the phase's name: for the batches of another phase, and for random numbers.
    in_phase: Callable[[str], Client]


@dataclass(frozen=True)
class Toy:
    """A learning problem of a few dozen parameters: one hidden layer, a linear head, clients of different size.

    Clients sit out rounds: `rounds` has the cohort of each round. Parameters are flat vectors.
    """

    start: Tensor
    rounds: tuple[tuple[ToyClient, ...], ...]
    #: How many clients there are in all.
    clients: int
    #: The shapes of the parameters by name, in the order of the flat vector; the head comes last.
    shapes: Mapping[str, tuple[int, ...]]
    #: The server's random numbers: server_generator(round, purpose), rounds counted from 1.
    server_generator: Callable[[int, str], torch.Generator]

    def parts(self, v: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of the flat vector."""
        pieces = torch.split_with_sizes(v, [prod(shape) for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    @property
    def head(self) -> slice:
        """Where the head lies in the flat vector."""
        size = sum(prod(shape) for name, shape in self.shapes.items() if name.startswith("head."))
        return slice(len(self.start) - size, len(self.start))

    def features(self, v: Tensor, x: Tensor) -> Tensor:
        """What the head sees: the hidden layer."""
        parts = self.parts(v)
        return linear(x, parts["featurizer.1.weight"], parts["featurizer.1.bias"]).relu()

    def logits(self, v: Tensor, x: Tensor) -> Tensor:
        parts = self.parts(v)
        return linear(self.features(v, x), parts["head.0.weight"], parts["head.0.bias"])

    def loss(self, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy at the parameters `v`; differentiable."""
        return cross_entropy(self.logits(v, x), y)

    def gradient(self, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of `loss` at `v`."""
        return gradient_of(lambda at: self.loss(at, x, y), v)

    def sgd(self, start: Tensor, batches: Iterable[Batch], lr: float, gradient: BatchGradient | None = None) -> Tensor:
        """The parameters after plain SGD from `start`, one step per batch, along `gradient` or the loss's own."""
        v = start
        for x, y in batches:
            v = v - lr * (gradient or self.gradient)(v, x, y)
        return v


def gradient_of(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The gradient of a scalar function of the parameters, by autograd."""
    variable = at.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(variable), variable)
    return gradient


@dataclass(frozen=True)
class WorkedExample:
    """One example of a method or a composition, with the settings that it is about."""

    method: str
    settings: Mapping[str, Any]
    #: From toy and parameters to the final model; by hand, from the algorithm to its numbers and the right ones.
    function: Callable[..., Any]
    tolerance: float
    by_hand: bool = False

    def __str__(self) -> str:
        return f"{self.method}: {self.function.__name__}"


_EXAMPLES: dict[tuple[str, str, str], WorkedExample] = {}


def worked_example(method: str, tolerance: float = 1e-9, **settings: Any) -> Callable[[Function], Function]:
    """Mark a naive implementation of some rounds, `function(toy, params)`, as an example of a method.

    `method` is a name or a composition, `settings` are those of its parameters that differ from the defaults. The
    function returns the final parameters: one flat vector, or where clients keep their own models one per client, in
    the order of the clients and one after the other. `tolerance` is the largest difference that an entry may have.
    """
    return _adding(method, settings, tolerance, by_hand=False)


def by_hand(method: str, tolerance: float = 1e-9, **settings: Any) -> Callable[[Function], Function]:
    """Mark numbers by hand as an example: `function(algorithm)` returns the algorithm's numbers and the right ones."""
    return _adding(method, settings, tolerance, by_hand=True)


def _adding(
    method: str, settings: Mapping[str, Any], tolerance: float, by_hand: bool
) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        key = (method, function.__module__, function.__qualname__)
        _EXAMPLES[key] = WorkedExample(method, settings, function, tolerance, by_hand)
        return function

    return add


def worked_examples(method: str | None = None) -> list[WorkedExample]:
    """The examples of a method or composition, or all there are."""
    return [example for example in _EXAMPLES.values() if method in (None, example.method)]
