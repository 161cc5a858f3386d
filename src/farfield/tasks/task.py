"""The Task contract: domains with data, the question asked of them, and a default model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from farfield.models.spec import ModelSpec
from farfield.tasks.images.image_set import ImageInput, ImageSet
from farfield.tasks.outline import TaskOutline

if TYPE_CHECKING:
    from pandas import DataFrame

TaskKind = Literal["classification", "regression"]


@dataclass(frozen=True)
class Domain:
    """One domain's examples. `x` is float32, or uint8 (scaled to [0, 1] when a batch is made).

    In a task with a preparation `x` is what that preparation reads: of a table float64, NaN where a value is missing.
    """

    name: str
    x: torch.Tensor
    y: torch.Tensor
    #: Row numbers that the data set's own split sets aside for validation; None where it has no split.
    validation: torch.Tensor | None = None
    #: Row numbers that this split gives to neither training nor validation, such as its test rows.
    outside: torch.Tensor | None = None
    #: A number for each row: rows of the same number (a patient, a burst of pictures) are on one side of the split
    #: into training and validation rows. None where every row stands for itself.
    groups: torch.Tensor | None = None
    #: Of a table: the cells as they were read, of which each run makes `x` by the columns that its sources decide.
    cells: DataFrame | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.groups is not None and self.groups.shape != (len(self.y),):
            raise ValueError(f"domain '{self.name}' has {len(self.y)} rows and groups of {tuple(self.groups.shape)}")
        if self.cells is not None and len(self.cells) != len(self.y):
            raise ValueError(f"domain '{self.name}' has {len(self.cells)} rows of cells but {len(self.y)} labels")
        if len(self.x) != len(self.y):
            raise ValueError(f"domain '{self.name}' has {len(self.x)} examples but {len(self.y)} labels")
        if len(self.y) == 0:
            raise ValueError(f"domain '{self.name}' has no examples")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Domain({self.name!r}, {len(self)} rows of {tuple(self.x.shape[1:])})"


class Fitted(Protocol):
    """A preparation with its numbers: the same for every row that it is applied to."""

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Raw examples as the model takes them: float32 and finite, or uint8."""

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        """Labels as the model learns them; class numbers stay as they are."""

    def outputs(self, given: torch.Tensor) -> torch.Tensor:
        """What the model gives, in the units of the raw labels."""

    @property
    def label_scale(self) -> float:
        """A raw label's units per unit of what the model learns: 1 for classes, the standard deviation for numbers."""

    def to_json(self) -> dict[str, Any]:
        """Everything that is needed to prepare rows again, without the data."""


class Preparation(Protocol):
    """How raw rows become examples, before any number is learned from them.

    Every statistic is merged from what each domain tells of its training rows, so that sites which see no rows but
    their own reach the same bits as one machine with all of them. A run fits on the training rows of its source domains
    only: not on validation rows, and never on rows of a domain that is held out.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a prepared example; it does not depend on what was fitted."""

    def of_sources(self, sources: Sequence[Domain]) -> Preparation:
        """Return the preparation that these domains alone decide: columns, their kinds, levels and gaps, the width.

        Whatever other domains hold plays no part. Raises ValueError, one sentence, if nothing is left to learn from.
        """
        return self

    def examples(self, domain: Domain) -> torch.Tensor:
        """Return a domain's raw examples as this preparation reads them, also of a domain that decided nothing."""
        return domain.x

    def check(self, domain: Domain) -> None:
        """Raise ValueError, one sentence, for rows that cannot be prepared."""

    def statistics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """What leaves a site: one domain's training rows, in ascending order, as JSON without any row."""

    def merge(self, parts: Sequence[Mapping[str, Any]]) -> Fitted:
        """Learn from the domains' statistics. Raises PreparationError for what no rows could have told."""

    def fit(self, parts: Sequence[tuple[Domain, torch.Tensor]]) -> Fitted:
        """Learn from these rows of these domains. Their order and how they are dealt out to clients do not matter."""
        ordered = [(domain, rows.sort().values) for domain, rows in parts if len(rows)]
        return self.merge([self.statistics(domain.x[rows], domain.y[rows]) for domain, rows in ordered])


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
    #: Decided and fitted anew in every run, on its sources alone. None where `x` is used as it is.
    preparation: Preparation | None = None
    #: Whether `classes` are those that occur in the rows, so that a run's classes are those of its sources. A class
    #: list that was published or given stays as it is.
    classes_from_rows: bool = False
    #: What a user must know of how the data was read, a sentence each: columns left out, rows that occur twice.
    notes: tuple[str, ...] = ()
    #: What tells these examples from any other; a loader that knows (the key of a cache) says so and saves the reading.
    fingerprint: str = ""
    #: The domains that are held out when nobody says which; all of them one by one where there are none.
    held_out: tuple[str, ...] = ()
    #: The image files behind the rows, for whoever wants them at another size.
    images: ImageSet | None = None
    #: How examples are made of images; None where they are not made of any, or where nobody knows how they were.
    input: ImageInput | None = None

    def __post_init__(self) -> None:
        names = [d.name for d in self.domains]
        if len(set(names)) != len(names):
            raise ValueError(f"task '{self.name}' has two domains of the same name among {names}")

    def __repr__(self) -> str:
        """Without the rows, which are many and may be a patient's."""
        sizes = ", ".join(f"{domain.name} ({len(domain)})" for domain in self.domains)
        return f"Task({self.name!r}, {self.kind}, {len(self.classes)} classes, domains: {sizes})"

    @property
    def domain_names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.domains)

    @cached_property
    def data_hash(self) -> str:
        """A short hash of everything that training can see, so that records tell when the data has changed."""
        digest = hashlib.sha256(f"{self.kind}{self.classes}{self.preparation}{self.fingerprint}".encode())
        for domain in self.domains:
            digest.update(f"{domain.name}{tuple(domain.x.shape)}{domain.x.dtype}".encode())
            examples = () if self.fingerprint else (domain.x,)
            split = tuple(part for part in (domain.validation, domain.groups) if part is not None)
            for tensor in (*examples, domain.y, *split):
                digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def outline(self) -> TaskOutline:
        """Return everything of this task but its rows."""
        return TaskOutline(
            name=self.name,
            kind=self.kind,
            rows={domain.name: len(domain) for domain in self.domains},
            classes=self.classes,
            model=self.model,
            shape=tuple(self.domains[0].x.shape[1:]) if self.preparation is None else self.preparation.shape,
            data=" ".join(part for part in (self.data_hash, self.fingerprint) if part),
            defaults=self.defaults,
            description=self.description,
            notes=self.notes,
            held_out=self.held_out,
            prepared=self.preparation is not None,
            input=self.input,
        )

    def domain(self, name: str) -> Domain:
        return next(d for d in self.domains if d.name == name)
