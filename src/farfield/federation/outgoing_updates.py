"""Update steps: what happens to a reply between its phase and the wire, in order.

An algorithm has a chain of steps, empty by default. Each step changes the values of a reply at the client, and says
what that does to what is declared, so that `farfield show`, a site's manifest and the checks tell of the reply as it
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from farfield.federation.client import Client
from farfield.federation.phase import Named, Sends


class UpdateStep(Protocol):
    """One step of the chain."""

    def declare(self, sends: Mapping[str, Sends]) -> Mapping[str, Sends]:
        """Return what is declared of a phase's outputs after this step."""

    def apply(self, values: Named, sends: Mapping[str, Sends], client: Client) -> Named:
        """Return the values to send instead of `values`, which `sends` declares. Runs at the client."""

    def restore(self, values: Named) -> Named:
        """Undo at the server what can be undone, such as a compression; return the values that the method reads."""


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

    def restore(self, values: Named) -> Named:
        return values

    def _shortened(self, value: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(value, dtype=torch.float64))
        if not length > self.limit:  # a value that is not finite stays so: the checks of the reply name it
            return value
        # A little below the limit, so that rounding the products cannot lead over it.
        return value * (self.limit / length * (1 - 2 * torch.finfo(value.dtype).eps))


def restored(phase: Callable[..., Any], values: Named) -> Named:
    """A reply's values as the algorithm's server half reads them: what its update steps did is undone in reverse."""
    algorithm = getattr(phase, "__self__", None)
    for step in reversed(getattr(algorithm, "update_steps", ())):
        values = step.restore(values)
    return values
