"""Client-level privacy: replies in which a client's whole contribution is protected.

All that a phase sends of a client's data is one vector: it is cut to the length C, and noise N(0, (zC)²) is added to
each of its entries at the client. So the guarantee holds against the server too, which sees the noised vector and
nothing else. What is not noised does not leave: losses, validation figures and running statistics are withheld.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield.federation.client import Client
from farfield.federation.phase import Named, Sends
from farfield.privacy.noise import source_of
from farfield.privacy.record_level import with_noise

#: As for rows: what is cut stays a little below the limit.
MARGIN = 1e-6


@dataclass(frozen=True)
class Withhold:
    """Leave out of each reply what is a function of rows and carries no noise. For record-level privacy.

    What is left is computed from noised gradients alone.
    """

    clip: float
    noise: float

    def declare(self, sends: Mapping[str, Sends]) -> Mapping[str, Sends]:
        made = (
            f"made from gradients with noise: each row's is at most {self.clip:g} long, and noise of {self.noise:g} "
            "times that is added"
        )
        return {
            name: replace(declared, meaning=f"{declared.meaning}; {made}")
            if declared.in_privacy == "noise"
            else declared
            for name, declared in sends.items()
            if declared.in_privacy != "withhold"
        }

    def apply(self, values: Named, sends: Mapping[str, Sends], client: Client) -> Named:
        return {name: value for name, value in values.items() if name in sends and sends[name].in_privacy != "withhold"}

    def restore(self, values: Named) -> Named:
        return values


@dataclass(frozen=True)
class ClipAndNoise:
    """Cut what a reply says of a client's data to a length of `clip`, as one vector, and add noise to it."""

    clip: float
    noise: float

    def declare(self, sends: Mapping[str, Sends]) -> Mapping[str, Sends]:
        said = f"with the rest of the reply at most {self.clip:g} long, then with noise of {self.noise:g} times that"
        return {
            name: replace(declared, meaning=f"{declared.meaning}; {said}")
            if declared.in_privacy == "noise"
            else declared
            for name, declared in sends.items()
            if declared.in_privacy != "withhold"
        }

    def apply(self, values: Named, sends: Mapping[str, Sends], client: Client) -> Named:
        noised = [n for n in sends if sends[n].in_privacy == "noise" and n in values]
        parts = [torch.as_tensor(values[name], dtype=torch.get_default_dtype()) for name in noised]
        # One order for all clients, the declared one: the noise of a part must not depend on what a client sends.
        flat = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.zeros(0)
        flat = with_noise(shortened(flat, self.clip), self.clip, self.noise, source_of(client, "privacy"))
        found: dict[str, Tensor | float | int] = {}
        start = 0
        for name, part in zip(noised, parts, strict=True):
            piece, start = flat[start : start + part.numel()], start + part.numel()
            found[name] = piece.view(part.shape) if isinstance(values[name], Tensor) else float(piece)
        public = {n: v for n, v in values.items() if n in sends and sends[n].in_privacy == "public"}
        return {**found, **public}

    def restore(self, values: Named) -> Named:
        return values


def shortened(vector: Tensor, clip: float) -> Tensor:
    """Return the vector cut to a length of at most `clip`; zeros for one that is not finite, which has no length."""
    length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if not length < float("inf"):
        return torch.zeros_like(vector)
    return vector * (clip * (1 - MARGIN) / length) if length > clip else vector
