"""Open a task: by its name, from a folder of images, or unchanged; at another image size, or as backbone features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from farfield.reproducibility.devices import device_named
from farfield.tasks import registry
from farfield.tasks.data_folder.store import MissingData, locate
from farfield.tasks.data_sets.image_listing import LISTINGS
from farfield.tasks.images.features import (
    DEFAULT,
    READY,
    FeatureError,
    backbone_named,
    features_of_images,
    ready_features,
    ready_path,
    with_features,
)
from farfield.tasks.part_of_rows import part_of
from farfield.tasks.task import Task
from farfield.tasks.user_data.folder import at_size, listed, load_folder


def open_task(
    task: str | Path | Task,
    *,
    features: str | None = None,
    image_size: int | None = None,
    rows: int | None = None,
    device: str = "cpu",
) -> Task:
    """A task by name, by its folder of images or as it is: at another size, or as features of a frozen backbone.

    `features` is "cached" (the default backbone), "cached:resnet18", "timm:NAME", or "cached:FILE.npz" for features
    that are ready. `rows` takes a part of it, by domain and class, for a quick look. `device` computes the features.
    """
    whole = _whole(task, features, image_size, device_named(device))
    return whole if rows is None else part_of(whole, rows)


def _whole(task: str | Path | Task, features: str | None, image_size: int | None, device: torch.device) -> Task:
    if features is None and image_size is None:
        return _opened(task)
    if features is not None and image_size is not None:
        raise FeatureError(
            "features are computed at the backbone's own size; give --features or --image-size, not both"
        )
    if image_size is not None:
        return _sized(task, image_size)
    backbone = backbone_named(str(features))
    if backbone.endswith(".npz"):
        return ready_features(_name_of(task), ready_path(backbone))
    if isinstance(task, Path):
        made = features_of_images(_name_of(task), listed(task), backbone, f"the images in {task.name}", "", device)
        return replace(made, classes_from_rows=True)
    if isinstance(task, Task):
        return with_features(task, backbone, device)
    try:
        return _named(task, backbone, device)
    except MissingData:
        ready = locate(READY[task]) if task in READY and backbone == DEFAULT else None
        if ready is None:
            raise
        return ready_features(task, ready)


def _name_of(task: str | Path | Task) -> str:
    return task.name if isinstance(task, Task) else task.resolve().name if isinstance(task, Path) else task


def _opened(task: str | Path | Task) -> Task:
    if isinstance(task, str):
        return registry.load(task)
    return load_folder(task) if isinstance(task, Path) else task


def _sized(task: str | Path | Task, size: int) -> Task:
    """The images at this size. Those that can be listed need not be decoded at another size first."""
    if isinstance(task, Path):
        return load_folder(task, size=size)
    if isinstance(task, str) and task in LISTINGS:
        return LISTINGS[task].task(size)
    return at_size(_opened(task), size)


def has_image_files(name: str) -> bool:
    """Whether a task of this name is made of image files."""
    return name in LISTINGS


def _named(name: str, backbone: str, device: torch.device) -> Task:
    """A registered task's features. Images that can be listed need not be decoded at another size first."""
    if name not in LISTINGS:
        return with_features(registry.load(name), backbone, device)
    listing = LISTINGS[name]
    made = features_of_images(name, listing.find(), backbone, listing.description, listing.source, device)
    return replace(made, held_out=listing.held_out)
