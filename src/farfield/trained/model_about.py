"""What a model folder says of its model, checked before anything is built from it.

The file may have been damaged or changed by anyone, so every field has a type and a size that it must have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from farfield.models import MissingTimm, ModelSpec, ModelState, hash_states
from farfield.models.model import count_numbers
from farfield.records import RecordsError
from farfield.records.checked_tensors import is_checked
from farfield.records.checksums import UNREADABLE
from farfield.tasks.images.image_set import ImageInput

#: The line of the card that has the hash of the model.
_HASH = re.compile(r"\| sha256 of parameters and buffers \| ([0-9a-f]{64}) \|")


class _About(BaseModel):
    """The fields of the metadata that are used; others are shown and never needed."""

    model_config = ConfigDict(extra="ignore")

    spec: ModelSpec
    classes: tuple[str, ...]
    kind: str = "classification"
    prepared: bool = False
    input: ImageInput | None = None
    round: int = 0


@dataclass(frozen=True)
class About:
    """The metadata of a model file, read and checked."""

    spec: ModelSpec
    classes: tuple[str, ...]
    prepared: bool
    input: ImageInput | None
    everything: Mapping[str, Any]


def read_about(path: Path, text: str) -> About:
    """Return what a model file says of its model. Raises RecordsError where it cannot be meant."""
    try:
        everything = json.loads(text)
        about = _About.model_validate(everything)
        # The numbers come from this file, so the weights that training started from are not needed.
        spec = about.spec.model_copy(update={"weights": "none"})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordsError(f"'{path}' is damaged or was not written by farfield: '{where}': {first['msg']}") from error
    except UNREADABLE as error:
        raise RecordsError(f"'{path}' is damaged or was not written by farfield: {str(error)[:200]}") from error
    if about.classes and spec.outputs not in (1, len(about.classes)):
        raise RecordsError(f"'{path}' is damaged: it has {len(about.classes)} classes for {spec.outputs} outputs")
    return About(spec, about.classes, about.prepared, about.input, everything)


def model_sizes(path: Path, spec: ModelSpec) -> tuple[int, int]:
    """Return how many parameters and buffers a spec asks for, without room for a single one."""
    try:
        return count_numbers(spec)
    except MissingTimm as error:  # the file is good, and this machine lacks what it needs
        raise RecordsError(f"the model in '{path.parent}' cannot be built here: {error}") from error
    except (ValueError, RuntimeError, TypeError, OverflowError, AssertionError) as error:
        first = str(error).split("\n")[0][:200]
        raise RecordsError(f"'{path}' is damaged: no model can be built as it says ({first})") from error


def check_card(folder: Path, path: Path, state: ModelState) -> None:
    """Compare the weights of an older version, which have no checksum, with the hash on the model's card."""
    if is_checked(path):
        return
    try:
        card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    known = _HASH.search(card)
    if known is not None and known[1] != hash_states([state]):
        raise RecordsError(
            f"'{path}' is damaged: its numbers do not have the sha256 that the model's card names; restore it from a "
            "copy, or train it again"
        )
