"""What a run's sources decide before any number is learned: how rows become examples, which classes there are.

Rows of a domain that is held out play no part: neither the width of the input nor the classes of a model depend on
them. A class that only the held-out domain has is *unseen*: the model cannot name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from farfield.models import ModelSpec
from farfield.tasks.task import Domain, Preparation, Task


@dataclass(frozen=True)
class SourceSchema:
    """How the rows of a run become examples, and its classes."""

    #: None where examples are used as they are.
    preparation: Preparation | None
    #: The shape of an example as the model takes it.
    shape: tuple[int, ...]
    #: The names of the classes that the model tells apart; empty for a regression.
    classes: tuple[str, ...]
    #: For each class of the task its number in this run. A class that the sources lack has a number beyond the model's.
    numbers: tuple[int, ...]

    @property
    def renumbered(self) -> bool:
        return self.numbers != tuple(range(len(self.numbers)))

    def labels(self, y: Tensor) -> Tensor:
        """A domain's class numbers in this run; real labels stay as they are."""
        return torch.tensor(self.numbers)[y] if self.renumbered else y

    def of_run(self, domain: Domain) -> Domain:
        """A domain with its raw examples as this run's preparation reads them, and the run's class numbers."""
        x = domain.x if self.preparation is None else self.preparation.examples(domain)
        return replace(domain, x=x, y=self.labels(domain.y), cells=None)

    def unseen(self, domain: Domain, classes: Sequence[str]) -> dict[str, int]:
        """How many of a domain's rows are of each class that the sources lack. `classes` are the task's names."""
        if len(self.classes) == len(classes):
            return {}
        counts = torch.bincount(domain.y, minlength=len(classes)).tolist()
        return {
            name: count
            for name, number, count in zip(classes, self.numbers, counts, strict=True)
            if count and number >= len(self.classes)
        }

    def spec(self, model: ModelSpec, classes: int) -> ModelSpec:
        """A task's model with the sizes of this run. `classes` is how many the task has."""
        outputs = len(self.classes) if classes and model.outputs == classes else model.outputs
        if (model.input_shape, model.outputs) == (self.shape, outputs):
            return model
        return model.model_copy(update={"input_shape": self.shape, "outputs": outputs})


def source_schema(task: Task, sources: Sequence[Domain]) -> SourceSchema:
    """Decide the schema from the sources alone. Raises ValueError, one sentence, where nothing can be learned."""
    preparation = None if task.preparation is None else task.preparation.of_sources(sources)
    shape = tuple(sources[0].x.shape[1:]) if preparation is None else preparation.shape
    present = source_classes(task, sources)
    absent = [code for code in range(len(task.classes)) if code not in present]
    numbers = {code: number for number, code in enumerate([*present, *absent])}
    classes = tuple(task.classes[code] for code in present)
    return SourceSchema(preparation, shape, classes, tuple(numbers[code] for code in range(len(task.classes))))


def source_classes(task: Task, sources: Sequence[Domain]) -> list[int]:
    """The task's numbers of the classes that a model of these sources tells apart; none for a regression."""
    if not task.classes_from_rows or task.kind == "regression":
        return list(range(len(task.classes)))
    present: list[int] = np.unique(np.concatenate([domain.y.numpy() for domain in sources])).tolist()
    if len(present) < 2:
        names = ", ".join(f"'{domain.name}'" for domain in sources[:3]) + ", …" * (len(sources) > 3)
        raise ValueError(
            f"the domains that would train ({names}) have the class '{task.classes[present[0]]}' only, so nothing can "
            "be learned from them; hold out others with --held-out"
        )
    return present
