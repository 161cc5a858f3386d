"""What a server tells a node about a run besides tensors: plain data, from which the node builds everything itself.

Code never travels. A node refuses a method that it does not know, and a phase that its operator did not approve.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from farfield.models import ModelSpec

#: The most characters of a run's name.
LONGEST_RUN_NAME = 100


class Assignment(BaseModel):
    """The run that a phase belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The server chooses it, and a node keeps under it what it has answered: by its full length, so that two names are
    #: two runs everywhere.
    run: str = Field(min_length=1, max_length=LONGEST_RUN_NAME)
    algorithm: str
    settings: dict[str, Any]
    rounds: int
    model: ModelSpec
    seed: int
    #: What a node needs to find and prepare its rows: the agreed schema at a site, shared files in a simulation.
    data: dict[str, Any] = {}
