"""What a server tells a node about a run, besides tensors: plain data, from which the node builds everything itself.

Code never travels. A node that does not know the method, or is asked for something it did not approve, refuses.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from farfield.models import ModelSpec


class Assignment(BaseModel):
    """The run that a phase belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    algorithm: str
    settings: dict[str, Any]
    rounds: int
    model: ModelSpec
    seed: int
    #: How a node finds its rows: nothing for a site that has its own, a task and partition in a simulation.
    data: dict[str, Any] = {}
