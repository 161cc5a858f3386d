"""Bound the length of what single clients send, at the server, before anything is made of it.

One client that sends its update a thousand times too long decides the mean alone. A bound cuts it to a length and keeps
its direction: to a fixed one, or to some times the median of the cohort's lengths. What is bounded is declared: updates
and gradients (`is_update`), and what grows with them (`Sends.bounded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.federation.execution import Outcome
from farfield.federation.phase import Sends

#: With fewer replies a single client can move the median to wherever it likes.
FEWEST = 3


@dataclass(frozen=True)
class Bound:
    """How long an update may be: `length`, or `factor` times the median of the cohort; None for no such limit."""

    length: float | None = None
    factor: float | None = None


@dataclass(frozen=True)
class Cut:
    """A value that was cut: whose, which, and from which length to which."""

    client: int
    name: str
    length: float
    limit: float

    def __str__(self) -> str:
        return f"'{self.name}' was {self.length:.3g} long and was cut to {self.limit:.3g}"


def cut_to_bound(replies: Sequence[Outcome], sends: Mapping[str, Sends], bound: Bound) -> Iterator[Cut]:
    """Cut in each reply what is longer than the bound, and yield what was cut."""
    for name, declared in sends.items():
        if declared.power == 0:
            continue
        vectors = {
            number: reply.values[name]
            for number, reply in enumerate(replies)
            if isinstance(reply.values.get(name), Tensor) and reply.values[name].is_floating_point()  # type: ignore[union-attr]
        }
        lengths = {number: euclidean(value) for number, value in vectors.items()}  # type: ignore[arg-type]
        limit = _limit(list(lengths.values()), declared, bound)
        for number, length in lengths.items():
            if limit is not None and length > limit:
                reply = replies[number]
                reply.values = {**reply.values, name: shortened(vectors[number], length, limit)}  # type: ignore[arg-type]
                yield Cut(reply.client, name, length, limit)


def _limit(lengths: Sequence[float], declared: Sends, bound: Bound) -> float | None:
    """Return the largest length allowed; None where there is none.

    The median is the lower one of an even number, so that one client of four cannot raise it. Where it is 0 there is
    no scale to compare with, and nothing is cut.
    """
    limits = []
    if bound.length is not None and declared.is_update:
        limits.append(bound.length)
    if bound.factor is not None and len(lengths) >= FEWEST:
        median = sorted(lengths)[(len(lengths) - 1) // 2]
        if median > 0:
            limits.append(median * float(bound.factor) ** declared.power)
    return min(limits, default=None)


def euclidean(value: Tensor) -> float:
    """Return the Euclidean length, in float64."""
    return float(torch.linalg.vector_norm(value.detach(), dtype=torch.float64))


def shortened(value: Tensor, length: float, limit: float) -> Tensor:
    """Return a value of this length scaled to `limit`, a little below it, so that rounding cannot lead over it."""
    return value * (limit / length * (1 - 2 * torch.finfo(value.dtype).eps))
