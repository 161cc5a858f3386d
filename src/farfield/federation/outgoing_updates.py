"""Update steps: what happens to a reply between its phase and the wire, in order.

An algorithm has a chain of steps, empty by default. Each step changes the values of a reply at the client, and says
what that does to what is declared, so that `farfield show`, a site's manifest and the checks tell of the reply as it
leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from farfield.federation.client import Client
from farfield.federation.phase import Named, Sends


class UpdateStep(Protocol):
    """One step of the chain."""

    def declare(self, sends: Mapping[str, Sends]) -> Mapping[str, Sends]:
        """Return what is declared of a phase's outputs after this step."""

    def apply(self, values: Named, sends: Mapping[str, Sends], client: Client) -> Named:
        """Return the values to send instead of `values`, which `sends` declares."""


@dataclass(frozen=True)
class Clip:
    """Scale each update and each gradient down to a Euclidean length of at most `limit`."""

    limit: float

    def declare(self, sends: Mapping[str, Sends]) -> Mapping[str, Sends]:
        return {
            name: replace(declared, meaning=f"{declared.meaning}; at most {self.limit:g} long")
            if declared.is_update
            else declared
            for name, declared in sends.items()
        }

    def apply(self, values: Named, sends: Mapping[str, Sends], client: Client) -> Named:
        updates = {name for name, declared in sends.items() if declared.is_update}
        return {
            name: self._shortened(value) if name in updates and isinstance(value, Tensor) else value
            for name, value in values.items()
        }

    def _shortened(self, value: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(value, dtype=torch.float64))
        # A value that is not finite stays so: the checks of the reply name it.
        return value if not length > self.limit else value * (self.limit / length)
