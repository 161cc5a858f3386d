"""The last update step of a method with secure sums: a reply becomes integers that the server needs only in sum.

A value that the method averages is sent as weight × value, with its weight under `NAME.weight`, so that the server has
the weighted mean and no client's weight. On one machine the engine adds the integers up; across sites they are masked
(`site_session`). The sum is the same integers either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from farfield.federation.client import Client
from farfield.federation.federation import Sum
from farfield.federation.phase import SCALAR, Named, Sends
from farfield.federation.secure_sums.quantise import DEFAULT_RANGE, FixedPoint
from farfield.models import Layout

#: A sum of two shows each of the two the other's numbers.
LEAST_CLIENTS = 3
#: How a value enters a sum, other than by the name of an output that is its weight.
AS_IT_IS, BY_SAMPLES, BY_WEIGHTING = "sum", "samples", "weighting"
_WEIGHT = ".weight"


class NotInSum(TypeError):
    """An output that the server needs one by one, of a method that is said to work with sums alone."""


def weight_name(name: str) -> str:
    return f"{name}{_WEIGHT}"


@dataclass(frozen=True)
class SecureSum:
    """Turn all values of a reply into integers, of which the server needs only the sum."""

    weighting: Literal["samples", "uniform"] = "samples"
    limit: float = DEFAULT_RANGE
    #: Fewer clients are not added up.
    least: int = LEAST_CLIENTS

    @property
    def fixed_point(self) -> FixedPoint:
        return FixedPoint(self.limit)

    def declare(self, sends: Mapping[str, Sends]) -> Mapping[str, Sends]:
        declared: dict[str, Sends] = {}
        for name, each in sends.items():
            how = _how(name, each)
            declared[name] = replace(
                each,
                meaning=each.meaning if how == AS_IT_IS else f"{each.meaning}, times a weight",
                server_sees="sum",
                integers=True,
                range=None,  # of the numbers that the integers stand for
                bounded=0,
            )
            if how != AS_IT_IS or each.optional:
                meaning = f"weight of '{name}' in its mean" if how != AS_IT_IS else f"whether '{name}' is there"
                declared[weight_name(name)] = Sends(SCALAR, meaning, "sum", optional=each.optional, integers=True)
        return declared

    def apply(self, values: Named, sends: Mapping[str, Sends], client: Client) -> Named:
        """Return the integers to send. Raises OutOfRange."""
        fixed, integers = self.fixed_point, {}
        for name, value in values.items():
            if name not in sends:
                return values  # the checks of the reply name what is not declared
            how = _how(name, sends[name])
            weight = 1.0 if how == AS_IT_IS else self._weight(how, values, client)
            integers[name] = fixed.integers(name, value, weight)
            if how != AS_IT_IS or sends[name].optional:
                integers[weight_name(name)] = fixed.integers(weight_name(name), weight)
        return integers

    def restore(self, values: Named) -> Named:
        return values

    def _weight(self, how: str, values: Named, client: Client) -> float:
        if how == BY_SAMPLES or (how == BY_WEIGHTING and self.weighting == "samples"):
            return float(client.samples)
        return 1.0 if how == BY_WEIGHTING else float(values[how])

    def sums(self, totals: Mapping[str, Tensor]) -> dict[str, Sum]:
        """Return what the server half reads, from the sums of the integers."""
        sums = {}
        for name, total in totals.items():
            weight = totals.get(weight_name(name))
            if weight is not None and not int(weight):
                continue  # an optional value that no client sent
            numbers = self.fixed_point.numbers(total)
            sums[name] = Sum(numbers, numbers.to(torch.get_default_dtype()))
        return {
            name: of for name, of in sums.items() if not name.endswith(_WEIGHT) or name.removesuffix(_WEIGHT) in sums
        }


def _how(name: str, sends: Sends) -> str:
    if sends.server_sees == "each" and not sends.in_sum:
        raise NotInSum(f"'{name}' is needed one by one, so it cannot be in a secure sum; declare it with in_sum=…")
    return sends.in_sum or AS_IT_IS


def summing_step(phase: Callable[..., Any] | None) -> SecureSum | None:
    """Return the step that makes a phase's reply a part of a secure sum; None where its replies are sent singly."""
    steps = getattr(getattr(phase, "__self__", None), "update_steps", ())
    return next((step for step in steps if isinstance(step, SecureSum)), None)


def added_up(replies: Sequence[Named]) -> dict[str, Tensor]:
    """Return the sums of integers by name, of those replies that have them."""
    totals: dict[str, Tensor] = {}
    for reply in replies:
        for name, value in reply.items():
            integers = torch.as_tensor(value, dtype=torch.int64)
            totals[name] = totals[name] + integers if name in totals else integers
    return totals


@dataclass(frozen=True)
class VectorLayout:
    """Where the integers of each output lie in one vector: the same for all clients, whatever a client omits."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, sends: Mapping[str, Sends], layout: Layout) -> VectorLayout:
        shapes = {}
        for name, each in sends.items():
            sizes = tuple(size for size in each.sizes(layout) if size is not None)
            if len(sizes) != len(each.dimensions):
                raise NotInSum(f"the size of '{name}' is known to the client alone, so it cannot be in a secure sum")
            shapes[name] = sizes
        return cls(shapes)

    @property
    def length(self) -> int:
        return sum(map(prod, self.shapes.values()))

    def vector(self, values: Named) -> Tensor:
        parts = [
            torch.as_tensor(values[name], dtype=torch.int64).reshape(-1)
            if name in values
            else torch.zeros(prod(shape), dtype=torch.int64)
            for name, shape in self.shapes.items()
        ]
        return torch.cat(parts)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = vector[start : start + prod(shape)].view(shape)
            start += prod(shape)
        return found
