"""What the data sets of the WILDS package have in common: a table of metadata that says what the images are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from farfield.tasks.data_folder.store import require
from farfield.tasks.data_sets.image_listing import Listing, offer
from farfield.tasks.images.image_set import ImageError, ImageSet, build
from farfield.tasks.user_data.groups import group_codes

if TYPE_CHECKING:
    from pandas import Series


def read_table(path: Path, columns: Iterable[str], text: Iterable[str] = ()) -> Any:
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


def images_here(
    root: Path,
    domains: Sequence[str],
    labels: Sequence[str],
    names: Sequence[str],
    classes: tuple[str, ...],
    *,
    order: tuple[str, ...] | None = None,
    groups: Series | None = None,
    held: NDArray[np.bool_] | None = None,
) -> ImageSet:
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
    made = build(root, rows, notes=notes, domains=order, classes=classes)
    row_of = {name: row for row, name in enumerate(names)}
    taken = [row_of[path] for path in made.paths]
    return replace(
        made,
        held=None if held is None else held[taken],
        groups=None if groups is None else group_codes(groups.iloc[taken]),
    )


def ungrouped(images: ImageSet, parts: Iterable[slice]) -> NDArray[np.int64]:
    """The groups, but each file of these parts in one of its own."""
    assert images.groups is not None
    groups = images.groups.copy()
    for part in parts:
        groups[part] = groups.max() + 1 + np.arange(part.stop - part.start)
    return groups


def only(images: ImageSet, keep: NDArray[np.bool_], classes: tuple[str, ...], *notes: str) -> ImageSet:
    """The files to keep, in the order that they have, with `classes` numbered anew."""
    number = np.array([classes.index(name) if name in classes else -1 for name in images.classes])
    sizes = {name: int(keep[part].sum()) for name, part in images.spans()}
    return replace(
        images,
        paths=tuple(compress(images.paths, keep)),
        labels=number[images.labels[keep]],
        domains=tuple(name for name, size in sizes.items() if size),
        sizes=tuple(size for size in sizes.values() if size),
        classes=classes,
        notes=(*images.notes, *notes),
        held=None if images.held is None else images.held[keep],
        groups=None if images.groups is None else images.groups[keep],
    )


def offer_wilds(
    name: str,
    folders: tuple[str, ...],
    listing: Callable[[Path], ImageSet],
    *,
    summary: str,
    domains: tuple[str, ...],
    classes: int,
    description: str,
    published: int | None = None,
    part: Callable[[ImageSet], ImageSet] | None = None,
    held_out: tuple[str, ...] = (),
) -> None:
    """Offer a set. `part` is taken after the count of what is here was compared with what was published."""

    def find() -> ImageSet:
        images = listing(require(name, *folders))
        if published is not None and len(images) != published:
            note = f"{len(images)} images are here; the published set has {published}"
            images = replace(images, notes=(*images.notes, note))
        return part(images) if part is not None else images

    offer(
        Listing(name, find, description, "WILDS (Koh et al., ICML 2021)", held_out),
        folders=folders,
        summary=summary,
        domains=domains,
        classes=classes,
    )
