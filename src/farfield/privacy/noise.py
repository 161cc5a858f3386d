"""Where the random numbers of private training come from.

On one machine they come from the run's seed, so that a run can be repeated to the bit. That is a simulation: whoever
knows the seed can subtract the noise. A site in a deployment draws them from the operating system instead, so that
neither the server nor another site can know them, and a run there is not repeated to the bit.
"""

from __future__ import annotations

import os
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from farfield.federation.client import Client

#: A secure draw is the scaled sum of so many (Holohan and Braghin 2021): the last bits of a single floating-point draw
#: tell what it was added to (Mironov 2012).
DRAWS = 4


class Source(Protocol):
    """A source of random numbers for one phase at one client."""

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return independent draws from the standard normal distribution, in float64."""

    def chosen(self, rows: int, rate: float) -> Tensor:
        """Return the positions of the rows that are drawn, each with probability `rate` and for itself."""


class SeededSource:
    """Draws from a generator that can be repeated: for one machine, where everything is known anyway."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator).double()

    def chosen(self, rows: int, rate: float) -> Tensor:
        if rate >= 1.0:
            return torch.arange(rows)
        draws = torch.rand(rows, generator=self._generator, dtype=torch.float64)
        return (draws < rate).nonzero().squeeze(1)


class SecureSource:
    """Draws from the operating system's generator: for a site, whose noise nobody else may know."""

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        # Midpoints of 2^52 cells, which float64 holds exactly, so that neither 0 nor 1 occurs.
        uniform = (_integers(DRAWS * prod(shape), 52) + 0.5) / 2.0**52
        draws = torch.special.ndtri(torch.from_numpy(uniform)).view(DRAWS, *shape)
        total: Tensor = draws.sum(0) / DRAWS**0.5
        return total

    def chosen(self, rows: int, rate: float) -> Tensor:
        if rate >= 1.0:
            return torch.arange(rows)
        return torch.from_numpy(np.flatnonzero(_integers(rows, 53) / 2.0**53 < rate))


def _integers(count: int, bits: int) -> np.ndarray:
    """Return independent integers of so many bits, at most 53, as floats, which hold them exactly."""
    drawn = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(64 - bits)
    return drawn.astype(np.float64)


def source_of(client: Client, purpose: str) -> Source:
    """Return the source of a client's secret random numbers in this phase."""
    return SecureSource() if client.secure_noise else SeededSource(client.generator(purpose))
