"""A task without its rows: what a plan is made from, also where the rows are elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from farfield.models.spec import ModelSpec
from farfield.tasks.images.image_set import ImageInput


@dataclass(frozen=True)
class TaskOutline:
    """Names and sizes of the domains, the question asked of them, and a default model.

    `Task.outline()` gives that of a task. The server of a deployment has an outline only: the sites have the rows.
    """

    name: str
    kind: Literal["classification", "regression"]
    #: Rows of each domain, in the order of the domains.
    rows: Mapping[str, int]
    classes: tuple[str, ...]
    model: ModelSpec
    #: The shape of an example as the model takes it.
    shape: tuple[int, ...]
    #: What tells this data from any other, so that records tell when it has changed.
    data: str
    #: Training settings that suit the task; anything a user sets wins over them.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    #: What a user must know of how the data was read, a sentence each.
    notes: tuple[str, ...] = ()
    #: The domains that are held out by default; all of them one by one where there are none.
    held_out: tuple[str, ...] = ()
    #: Whether examples are made of a table's or a text's raw rows, by numbers that every run fits anew.
    prepared: bool = False
    #: How examples are made of images; None where they are not.
    input: ImageInput | None = None

    @property
    def domain_names(self) -> tuple[str, ...]:
        return tuple(self.rows)
