"""The official split of a public image set: which images are for training, for validation, or for neither.

Read are a `splits.csv` (columns path and split), else the lists that the sets are published with, in the folder itself
or one level down: PACS's `photo_train_kfold.txt` and `photo_crossval_kfold.txt`, DomainNet's `clipart_train.txt` and
`clipart_test.txt`, with a path and a class number a line. (PACS's `photo_test_kfold.txt` lists all images of its domain
and splits nothing.) The class of an image is its folder's; the number in a list is not used.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from farfield.tasks.images.image_set import ImageError, ImageSet
from farfield.tasks.images.layouts import plain, spellings

TRAIN, VALIDATION, TEST = "train", "val", "test"
NAMES = {"train": TRAIN, "val": VALIDATION, "crossval": VALIDATION, "test": TEST}
#: Endings of published lists and what they are used for. DomainNet has no list for validation. A held-out domain is
#: measured on all its images here, so no figure is of a source's test images: they are free to choose a round by.
LISTS = {
    "_train_kfold.txt": TRAIN,
    "_crossval_kfold.txt": VALIDATION,
    "_train.txt": TRAIN,
    "_test.txt": VALIDATION,
}


@dataclass
class _Split:
    """The part that each listed image belongs to, by domain and path below it."""

    #: Every spelling of a domain, and of a class if only some classes are wanted.
    domains: Mapping[str, str]
    classes: Mapping[str, str] | None
    #: The folder around the domains, relative to the root; lists are written without it.
    around: str
    part: dict[str, str] = field(default_factory=dict)

    def key(self, path: str) -> str | None:
        """How an image is called here; None for one of a class that is not wanted."""
        parts = path.replace("\\", "/").removeprefix("./").removeprefix(self.around).split("/")
        if self.classes is not None and not any(plain(folder) in self.classes for folder in parts[1:-1]):
            return None
        return "/".join([self.domains.get(plain(parts[0]), parts[0]), *parts[1:]])

    def add(self, path: str, part: str, where: Path) -> None:
        key = self.key(path)
        if key is not None and self.part.setdefault(key, part) != part:
            raise ImageError(f"'{where}' gives '{path}' to {part}, but it is in {self.part[key]} already; list it once")


def with_official_split(
    images: ImageSet, domains: Mapping[str, Iterable[str]], classes: Mapping[str, Iterable[str]] | None
) -> ImageSet:
    """The images with their official split, if one lies beside them, and notes on what it leaves open."""
    known = spellings(domains)
    assert known is not None
    common = os.path.commonpath(images.paths) if len(images.domains) > 1 else ""
    split = _Split(known, spellings(classes), f"{common}/" if common else "")
    files = _read(images.root, split, domains)
    if not files:
        return images
    keys = [split.key(path) or path for path in images.paths]
    parts = [split.part.get(key) for key in keys]
    held = np.array([part == VALIDATION for part in parts])
    outside = np.array([part in (TEST, None) for part in parts])
    absent = sorted(set(split.part) - set(keys))
    notes = list(images.notes)
    if outside.any():
        test, unlisted = parts.count(TEST), parts.count(None)
        counts = [f"{test:,} marked as test"] * bool(test) + [f"{unlisted:,} that are not listed"] * bool(unlisted)
        notes.append(
            f"with --validation official, {' and '.join(counts)} of {len(images):,} images are neither trained on nor "
            f"used for validation, as '{files[0].name}'{' and others say' if files[1:] else ' says'}"
        )
    if absent:
        notes.append(f"{len(absent):,} images that the official split lists are not here, first '{absent[0]}'")
    return replace(images, notes=tuple(notes), held=held, outside=outside)


def _read(root: Path, split: _Split, domains: Mapping[str, Iterable[str]]) -> list[Path]:
    """Fill the split in, and say from which files."""
    table = root / "splits.csv"
    if table.is_file():
        for path, part in _rows(table):
            split.add(path, part, table)
        return [table]
    names = [
        (f"{name}{end}", part) for d, others in domains.items() for name in (d, *others) for end, part in LISTS.items()
    ]
    files = [(path, part) for name, part in names for path in (*root.glob(name), *sorted(root.glob(f"*/{name}")))]
    for file, part in files:
        for path in _lines(file):
            split.add(path, part, file)
    return [file for file, _ in files]


def _rows(table: Path) -> Iterator[tuple[str, str]]:
    with open(table, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"path", "split"} <= set(reader.fieldnames or ()):
            raise ImageError(
                f"'{table}' has no columns 'path' and 'split'; it has {', '.join(reader.fieldnames or ())}"
            )
        for row in reader:
            if row["split"] not in NAMES:
                raise ImageError(
                    f"'{table}' has the split '{row['split']}'; it may say train, val (or crossval) and test"
                )
            yield row["path"], NAMES[row["split"]]


def _lines(path: Path) -> Iterator[str]:
    """The paths in a published list. They may hold spaces; the class number after the last one may not."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdigit():
            raise ImageError(f"line {number} of '{path}' is '{line.strip()}', not a path, a space and a class number")
        yield name.strip()
