"""A folder of images as a task: `domain/class/*.png`, decoded once.

task = load_folder(Path("sites"))          # sites/berlin/cat/1.jpg, sites/oslo/cat/1.jpg, …
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.models.spec import ModelSpec
from farfield.tasks.images.image_set import ImageError, ImageInput, ImageSet
from farfield.tasks.images.layouts import EXPECTED, list_folder
from farfield.tasks.images.pixels import HashedImages, pixels, shared_content
from farfield.tasks.task import Domain, Task
from farfield.tasks.user_data.data_warnings import NAMED, lacking_notes, spelling_notes

SIZE = 64
SIZES = (8, 1024)
#: Fewer images than this are no domain: a tenth is set aside for validation, and a figure needs some to stand on.
LEAST_IMAGES = 10
#: For training from scratch, small enough for a processor. Usual values, tuned on no data set.
DEFAULTS: Mapping[str, Any] = {"rounds": 20, "local_epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.9}


def load_folder(path: Path | str, *, name: str | None = None, size: int = SIZE) -> Task:
    """The images of a folder as a task of uint8 rows [3, size, size], decoded the first time it is loaded."""
    path = Path(path)
    made = image_task(
        listed(path), name=name or path.resolve().name, size=size, description=f"the images in {path.name}"
    )
    return replace(made, classes_from_rows=True)


def listed(path: Path) -> ImageSet:
    """The images of a folder of several domains, before any is decoded."""
    from farfield.tasks.data_sets.wilds import list_wilds

    images = list_wilds(path) or list_folder(path)
    if len(images.domains) < 2:
        raise ImageError(
            f"'{path}' holds one domain only ('{images.domains[0]}'), and leaving one out needs two: the layout is "
            f"{EXPECTED}"
        )
    return images


def image_task(
    images: ImageSet,
    *,
    name: str,
    size: int = SIZE,
    defaults: Mapping[str, Any] | None = None,
    description: str = "",
    source: str = "",
    least: int = LEAST_IMAGES,
) -> Task:
    """A task of the listed images at this size. Everything unusual about them is in its notes."""
    if not SIZES[0] <= size <= SIZES[1]:
        raise ImageError(f"images of {size} × {size} cannot be made; choose a size from {SIZES[0]} to {SIZES[1]}")
    kept, notes = described(images, least)
    x = pixels(images, kept.hashed, size)
    return Task(
        name=name,
        kind="classification",
        domains=make_domains(images, x),
        classes=images.classes,
        model=image_model(size, len(images.classes)),
        defaults=DEFAULTS if defaults is None else {**DEFAULTS, **defaults},
        description=description,
        source=source,
        notes=notes,
        fingerprint=kept.key(images.domains, images.sizes, images.classes, images.labels.tolist(), size),
        images=images,
        input=ImageInput(size),
    )


def image_model(size: int, classes: int) -> ModelSpec:
    """A convnet that a processor can train from scratch."""
    return ModelSpec(
        featurizer="convnet", input_shape=(3, size, size), outputs=classes, hidden=(16, 32, 64, 128), norm="group"
    )


def described(images: ImageSet, least: int = LEAST_IMAGES) -> tuple[HashedImages, tuple[str, ...]]:
    """What is known of the files' content, and everything unusual about them; what cannot be used is refused."""
    check_images(images, least)
    kept = HashedImages.of(images)
    return kept, (*images.notes, *_name_notes(images), *_class_notes(images), *shared_content(images, kept.hashed))


def make_domains(images: ImageSet, x: torch.Tensor) -> tuple[Domain, ...]:
    """Rows cut into domains: views, nothing is copied."""
    y = torch.from_numpy(images.labels)
    domains = []
    for name, part in images.spans():
        held = images.held[part] if images.held is not None else np.zeros(part.stop - part.start, dtype=bool)
        outside = images.outside[part] if images.outside is not None else np.zeros_like(held)
        validation, neither = official(held, outside)
        if validation is None and name in images.trained:
            validation = torch.zeros(0, dtype=torch.int64)
        groups = None if images.groups is None else torch.from_numpy(images.groups[part])
        domains.append(Domain(name, x[part], y[part], validation, neither, groups))
    return tuple(domains)


def official(held: NDArray[np.bool_], outside: NDArray[np.bool_]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Row numbers of validation rows and of those in neither part; None twice where a part would be empty."""
    if not held.any() or bool((held | outside).all()):
        return None, None
    return torch.from_numpy(np.flatnonzero(held)), torch.from_numpy(np.flatnonzero(outside))


def at_size(task: Task, size: int) -> Task:
    """The same images at another size."""
    if task.images is None:
        raise ImageError(f"task '{task.name}' has no image files behind it; its inputs have a size of their own")
    made = image_task(
        task.images,
        name=task.name,
        size=size,
        defaults=task.defaults,
        description=task.description,
        source=task.source,
        least=1,
    )
    return replace(made, notes=task.notes, held_out=task.held_out, classes_from_rows=task.classes_from_rows)


def check_images(images: ImageSet, least: int = LEAST_IMAGES) -> None:
    """Refuse domains that are too small to train or to measure on, and a task of one class."""
    for domain, count in zip(images.domains, images.sizes, strict=True):
        if count < least:
            raise ImageError(
                f"domain '{domain}' in '{images.root}' has {count} images, and a domain needs at least {least}: add "
                "images, or take its folder away"
            )
    present = np.unique(images.labels)
    if len(present) < 2:
        raise ImageError(
            f"all images in '{images.root}' are of class '{images.classes[int(present[0])]}', so there is nothing to "
            f"tell apart: the layout is {EXPECTED}"
        )


def _name_notes(images: ImageSet) -> list[str]:
    """Folders whose names are two spellings of one, as 'Dog' and 'dog'."""
    counts = np.bincount(images.labels, minlength=len(images.classes)).tolist()
    classes, domains = (
        dict(zip(*both, strict=True)) for both in ((images.classes, counts), (images.domains, images.sizes))
    )
    return [
        *spelling_notes("among its classes the folder", classes, "images"),
        *spelling_notes("among its domains the folder", domains, "images"),
    ]


def _class_notes(images: ImageSet) -> list[str]:
    present = {domain: np.unique(images.labels[part]) for domain, part in images.spans()}
    if images.one_class:
        return []
    alone = {domain: images.classes[int(codes[0])] for domain, codes in present.items() if len(codes) == 1}
    notes = [
        f"domain '{domain}' has images of one class only ('{label}'): its client learns to say that, and accuracy on "
        "it says little"
        for domain, label in list(alone.items())[:NAMED]
    ]
    if len(alone) > NAMED:
        notes.append(f"{len(alone) - NAMED} more domains have images of one class only")
    return [*notes, *lacking_notes(present, images.classes)]
