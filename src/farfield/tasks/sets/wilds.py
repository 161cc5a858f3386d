"""Data sets in the layout of the WILDS package: a table of metadata beside the images.

Koh et al., WILDS: A Benchmark of in-the-Wild Distribution Shifts, ICML 2021. The official splits into training and test
domains are not used: here every domain is held out in turn, or the ones that a bench names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from farfield.tasks.data_folder.store import locate, require
from farfield.tasks.images.files import ImageError, ImageSet, build
from farfield.tasks.own.folder import LEAST_IMAGES, image_task
from farfield.tasks.registry import register
from farfield.tasks.task import Task

CAMELYON = ("camelyon17_v1.0", "camelyon17")
IWILDCAM = ("iwildcam_v2.0", "iwildcam")
CELEBA = ("celebA_v1.0", "celeba", "celebA", "CelebA")
#: FedCiR: ten classes of samples in the ten cameras with the most data.
SUBSET = 10
#: iWildCam's class 0: nothing to see on the picture.
EMPTY = 0


def list_wilds(root: Path) -> ImageSet | None:
    """The images of a folder in one of these layouts; None if it has another."""
    if (root / "list_attr_celeba.csv").is_file():
        return list_celeba(root)
    if not (root / "metadata.csv").is_file():
        return None
    with open(root / "metadata.csv", encoding="utf-8", errors="replace") as file:
        columns = set(file.readline().strip().split(","))
    if {"center", "tumor"} <= columns:
        return list_camelyon(root)
    if {"location_remapped", "y"} <= columns:
        return list_iwildcam(root)
    return None


def list_camelyon(root: Path) -> ImageSet:
    """Hospital as domain, tumour or not as class."""
    table = _read(
        root / "metadata.csv", ("patient", "node", "x_coord", "y_coord", "tumor", "center"), text=("patient",)
    )
    patients = table["patient"].str.zfill(3)
    names = [
        f"patches/patient_{p}_node_{n}/patch_patient_{p}_node_{n}_x_{x}_y_{y}.png"
        for p, n, x, y in zip(patients, table["node"], table["x_coord"], table["y_coord"], strict=True)
    ]
    hospitals = [f"hospital-{center}" for center in table["center"]]
    classes = ("normal", "tumor")
    labels = [classes[int(tumor)] for tumor in table["tumor"]]
    return _present(root, hospitals, labels, names, classes)


def list_iwildcam(root: Path) -> ImageSet:
    """Camera as domain, animal as class. Cameras with too few pictures to be a domain are left out and noted."""
    table = _read(root / "metadata.csv", ("location_remapped", "y", "filename"))
    classes = _animals(root, int(table["y"].max()) + 1)
    cameras = [f"camera-{number:03d}" for number in table["location_remapped"]]
    labels = [classes[y] for y in table["y"]]
    images = _present(root, cameras, labels, [f"train/{name}" for name in table["filename"]], classes)
    small = [d for d, size in zip(images.domains, images.sizes, strict=True) if size < LEAST_IMAGES]
    if not small or len(small) == len(images.domains):
        return images
    note = f"{len(small)} cameras with fewer than {LEAST_IMAGES} pictures were left out"
    return _only(images, set(images.domains) - set(small), set(classes), classes, note)


def ten_cameras(images: ImageSet) -> ImageSet:
    """FedCiR's part of iWildCam: the ten commonest animals ('empty' is none) in the ten cameras with most of them."""
    import numpy as np

    empty = images.classes[EMPTY]
    counts = np.bincount(images.labels, minlength=len(images.classes))
    counts[EMPTY] = 0
    chosen = set(np.argsort(-counts, kind="stable")[:SUBSET].tolist())
    kept = np.isin(images.labels, list(chosen))
    size = {name: int(kept[part].sum()) for name, part in images.spans()}
    cameras = sorted(size, key=lambda name: (-size[name], name))[:SUBSET]
    classes = tuple(c for i, c in enumerate(images.classes) if i in chosen and c != empty)
    return _only(images, set(cameras), set(classes), classes)


def list_celeba(root: Path) -> ImageSet:
    """Blond hair or not as class, and as domain the attribute it hangs together with in this set: male or not.

    The four groups of the worst-group accuracy are domain × class.
    """
    table = _read(root / "list_attr_celeba.csv", ("image_id", "Blond_Hair", "Male"))
    domains = ["male" if value == 1 else "female" for value in table["Male"]]
    classes = ("not-blond", "blond")
    labels = [classes[int(value == 1)] for value in table["Blond_Hair"]]
    return _present(root, domains, labels, [f"img_align_celeba/{name}" for name in table["image_id"]], classes)


def _read(path: Path, columns: Iterable[str], text: Iterable[str] = ()) -> Any:
    import pandas as pd

    if not path.is_file():
        raise ImageError(f"there is no '{path}', the table that says what the images are")
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(text, "str"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ImageError(f"'{path}' cannot be read as a table: {str(error).splitlines()[0]}") from error
    for column in columns:
        if column not in table:
            raise ImageError(f"'{path}' has no column '{column}'; it has {', '.join(map(str, table.columns))}")
        if table[column].isna().any():
            row = int(table[column].isna().to_numpy().argmax())
            raise ImageError(f"'{path}' has no value in column '{column}' of row {row + 2}")
    return table


def _present(root: Path, domains: list[str], labels: list[str], names: list[str], classes: tuple[str, ...]) -> ImageSet:
    """The rows whose image is here; how many are not is noted, because people keep parts of large sets."""
    here = [os.path.exists(root / name) for name in names]
    absent = len(here) - sum(here)
    if absent == len(here):
        raise ImageError(f"none of the {absent} images that the table in '{root}' names is there, such as '{names[0]}'")
    notes = []
    if absent:
        first = names[here.index(False)]
        notes.append(f"{absent} of {len(here)} images that the table names are not in '{root}', first '{first}'")
    rows = [row for row, there in zip(zip(domains, labels, names, strict=True), here, strict=True) if there]
    return build(root, rows, notes=notes, classes=classes)


def _animals(root: Path, least: int) -> tuple[str, ...]:
    """Class names by number, from categories.csv where that lies beside the table."""
    named: dict[int, str] = {}
    if (root / "categories.csv").is_file():
        table = _read(root / "categories.csv", ("y", "name"))
        # Rows of animals that no picture shows have no number among these classes.
        named = {int(y): str(name) for y, name in zip(table["y"], table["name"], strict=True) if 0 <= int(y) < 99999}
    count = max(least, max(named, default=0) + 1)
    names = [named.get(i, "empty" if i == EMPTY else f"class-{i:03d}") for i in range(count)]
    return tuple(name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names))


def _only(images: ImageSet, domains: set[str], labels: set[str], classes: tuple[str, ...], *notes: str) -> ImageSet:
    rows = [
        (domain, images.classes[images.labels[i]], images.paths[i])
        for domain, part in images.spans()
        if domain in domains
        for i in range(part.start, part.stop)
        if images.classes[images.labels[i]] in labels
    ]
    made = build(images.root, rows, notes=(*images.notes, *notes), classes=classes)
    return replace(made, notes=made.notes)


def _register(
    name: str,
    folders: tuple[str, ...],
    listing: Callable[[Path], ImageSet],
    *,
    summary: str,
    domains: tuple[str, ...],
    classes: int,
    description: str,
    published: int | None = None,
) -> None:
    def load() -> Task:
        images = listing(require(name, *folders))
        if published is not None and len(images) != published:
            note = f"{len(images)} images are here; the published set has {published}"
            images = replace(images, notes=(*images.notes, note))
        return image_task(
            images,
            name=name,
            defaults={"augment": "standard"},
            description=description,
            source="WILDS (Koh et al., ICML 2021)",
        )

    load.__qualname__ = f"load.{name}"
    register(
        name,
        summary=summary,
        domains=domains,
        classes=classes,
        kind="classification",
        available=lambda: locate(*folders) is not None,
        exact=False,
    )(load)


_register(
    "camelyon17",
    CAMELYON,
    list_camelyon,
    summary="lymph node patches with or without tumour, from five hospitals (WILDS)",
    domains=tuple(f"hospital-{i}" for i in range(5)),
    classes=2,
    description="patches of lymph node tissue from five hospitals",
    published=455_954,
)
_register(
    "iwildcam",
    IWILDCAM,
    list_iwildcam,
    summary="animals before camera traps, a domain a camera (WILDS)",
    domains=(),
    classes=182,
    description="animals in the pictures of camera traps",
    published=203_029,
)
_register(
    "iwildcam-10",
    IWILDCAM,
    lambda root: ten_cameras(list_iwildcam(root)),
    summary="ten animals before the ten busiest camera traps (FedCiR's part of iWildCam)",
    domains=(),
    classes=SUBSET,
    description="ten animals in the pictures of ten camera traps",
)
_register(
    "celeba",
    CELEBA,
    list_celeba,
    summary="faces with blond hair or not, by gender (WILDS)",
    domains=("female", "male"),
    classes=2,
    description="faces with blond hair or not",
    published=202_599,
)
