"""The Task contract: domains with data, the question asked of them, and a default model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from farfield.models.spec import ModelSpec
from farfield.tasks.images import ImageSet

TaskKind = Literal["classification", "regression"]


@dataclass(frozen=True)
class Domain:
    """One domain's examples. `x` is float32, or uint8 (scaled to [0, 1] when a batch is made)."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    #: Row numbers that the data set's own split sets aside for validation; None where it has no split.
    validation: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"domain '{self.name}' has {len(self.x)} examples but {len(self.y)} labels")
        if len(self.y) == 0:
            raise ValueError(f"domain '{self.name}' has no examples")

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Task:
    """Several domains that ask the same question. `y` holds class numbers (int64) or real targets (float32)."""

    name: str
    kind: TaskKind
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    model: ModelSpec
    #: Training settings that suit this task; anything a user sets wins over them.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    source: str = ""
    #: What a user must know of how the data was read, a sentence each: columns left out, rows that occur twice.
    notes: tuple[str, ...] = ()
    #: A hash of data that may change under the same name; a bench is resumed on the same data only.
    fingerprint: str = ""
    #: The image files behind the rows, for whoever wants them at another size.
    images: ImageSet | None = None

    def __post_init__(self) -> None:
        names = [d.name for d in self.domains]
        if len(set(names)) != len(names):
            raise ValueError(f"task '{self.name}' has two domains of the same name among {names}")

    @property
    def domain_names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.domains)

    def domain(self, name: str) -> Domain:
        return next(d for d in self.domains if d.name == name)
