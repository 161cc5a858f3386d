"""Preparation of bags of words: a word that the fitting rows never showed is not shown to the model either.

    fitted = WordPreparation(words).fit([(domain, training_rows), ...])   # or merge([statistics(x, y), ...])
    fitted.apply(other.x)                                                 # 0 in the columns of words that are new

A model's weights for such a word are still the random ones that training started from, and a site that uses many words
of its own would be judged by them. Rows are uint8, 255 for a word that is there, and stay so: as floats a large
collection would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from farfield.tasks.task import Domain, Preparation
from farfield.tasks.user_data.column_statistics import DomainStatistics, PreparationError, read_statistics
from farfield.tasks.user_data.preparation import FORMAT

KIND = "words"


@dataclass(frozen=True)
class FittedWords:
    """The words, and which of them were in the fitting rows; JSON both ways."""

    words: tuple[str, ...]
    seen: tuple[bool, ...]

    @property
    def label_scale(self) -> float:
        return 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.words),)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of bytes, or of numbers between 0 and 1, as they came except for new words."""
        if x.dim() != 2 or x.shape[1] != len(self.words):
            raise ValueError(f"a row has {len(self.words)} words; these have the shape {tuple(x.shape)}")
        return x * torch.tensor(self.seen, dtype=x.dtype)

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        return y

    def outputs(self, given: torch.Tensor) -> torch.Tensor:
        return given

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "format": FORMAT, "words": list(self.words), "seen": list(self.seen)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FittedWords:
        if content.get("kind") != KIND or content.get("format") != FORMAT:
            raise PreparationError(
                f"this preparation is '{content.get('kind')}' of format {content.get('format')}; "
                f"this version reads '{KIND}' of format {FORMAT}"
            )
        words, seen = content.get("words"), content.get("seen")
        if not isinstance(words, list) or not isinstance(seen, list) or len(words) != len(seen):
            raise PreparationError("this preparation is damaged: it has not one mark for each of its words")
        return cls(tuple(map(str, words)), tuple(map(bool, seen)))


@dataclass(frozen=True)
class WordPreparation(Preparation):
    """The words of a collection, in the order of the columns."""

    words: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.words),)

    def check(self, domain: Domain) -> None:
        if domain.x.dtype != torch.uint8 or tuple(domain.x.shape[1:]) != self.shape:
            raise ValueError(
                f"domain '{domain.name}': a bag of words is uint8 with {len(self.words)} columns, not "
                f"{domain.x.dtype} of shape {tuple(domain.x.shape)}"
            )

    def statistics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"kind": "word-statistics", "format": FORMAT, "seen": (x > 0).any(dim=0).tolist()}

    def merge(self, parts: Sequence[Mapping[str, Any]]) -> FittedWords:
        """Mark the words that any of the domains has."""
        if not parts:
            raise ValueError("a preparation needs at least one row to learn from")
        read = [self.read_statistics(part) for part in parts]
        return FittedWords(self.words, tuple(map(any, zip(*(part.seen for part in read), strict=True))))

    def read_statistics(self, content: Mapping[str, Any]) -> _WordStatistics:
        """A domain's statistics, checked."""
        read = read_statistics(_WordStatistics, content, "words")
        if len(read.seen) != len(self.words):
            raise PreparationError(
                f"the statistics of words cannot be used: there are {len(self.words)} words, not {len(read.seen)}"
            )
        return read


class _WordStatistics(DomainStatistics):
    kind: Literal["word-statistics"]
    format: Literal[1]
    seen: list[bool]
