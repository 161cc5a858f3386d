"""Image files as an ordered list with labels, and how one file becomes an array. Nothing here knows a folder layout."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from farfield.errors import UserError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"})
#: Pictures with more pixels than this are refused before they are decoded: a file of kilobytes can hold gigabytes. What
#: counts are the pixels to be decoded, so a JPEG that is shrunk while it is decoded may have more.
MOST_PIXELS = 50_000_000
In = TypeVar("In")
Out = TypeVar("Out")


class ImageError(UserError):
    """Images that cannot be used as they are."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Image files domain after domain. File i is `root / paths[i]`, of class `labels[i]`."""

    root: Path
    #: Relative to the root, with forward slashes.
    paths: tuple[str, ...]
    labels: NDArray[np.int64]
    domains: tuple[str, ...]
    #: How many files each domain has, in order.
    sizes: tuple[int, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    #: Whether a file belongs to the official validation split; None where there is no split.
    held: NDArray[np.bool_] | None = field(default=None)
    #: Whether that split gives a file to neither training nor validation.
    outside: NDArray[np.bool_] | None = field(default=None)
    #: Domains that the split trains on. Their validation part may be empty: it need not reach every domain.
    trained: tuple[str, ...] = ()
    #: A number for each file, the same for files that belong together (a patient's, a burst's); None if nobody knows.
    groups: NDArray[np.int64] | None = None
    #: Every domain has one class on purpose, and a note of the set's own says what follows from it.
    one_class: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def spans(self) -> Iterator[tuple[str, slice]]:
        """Each domain's name with its part of the list."""
        start = 0
        for name, size in zip(self.domains, self.sizes, strict=True):
            yield name, slice(start, start + size)
            start += size


@dataclass(frozen=True)
class ImageInput:
    """How a task's examples were made of images, so that a trained model's are made in the same way."""

    #: Pixels along each side.
    size: int
    #: The frozen backbone whose features the examples are, with name and sha256 of its weights; empty for pixels.
    backbone: str = ""
    weights: str = ""
    #: The shape of the arrays that stood in for image files; empty where there were files.
    arrays: tuple[int, ...] = ()


def build(
    root: Path,
    found: Iterable[tuple[str, str, str]],
    *,
    notes: Iterable[str] = (),
    domains: tuple[str, ...] | None = None,
    classes: tuple[str, ...] | None = None,
) -> ImageSet:
    """An ImageSet of (domain, class, relative path) in any order. Names are sorted unless their order is given."""
    rows = list(found)
    present = {domain for domain, _, _ in rows}
    order = tuple(d for d in domains if d in present) if domains is not None else tuple(sorted(present))
    labels = classes if classes is not None else tuple(sorted({label for _, label, _ in rows}))
    place, number = {d: i for i, d in enumerate(order)}, {c: i for i, c in enumerate(labels)}
    rows.sort(key=lambda row: (place[row[0]], number[row[1]], row[2]))
    counts = np.bincount([place[domain] for domain, _, _ in rows], minlength=len(order)) if rows else np.zeros(0)
    return ImageSet(
        root=root,
        paths=tuple(path for _, _, path in rows),
        labels=np.array([number[label] for _, label, _ in rows], dtype=np.int64),
        domains=order,
        sizes=tuple(int(count) for count in counts),
        classes=labels,
        notes=tuple(notes),
    )


def decode(data: bytes, size: int) -> NDArray[np.uint8]:
    """The bytes of an image file as [3, size, size]: upright, RGB, squeezed to a square, smoothed while shrinking."""
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound below is ours
        image = Image.open(BytesIO(data))
    with image:
        # A JPEG can be decoded at a half, a quarter or an eighth at a fraction of the cost; other formats ignore it.
        image.draft("RGB", (size, size))
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            raise ImageError(
                f"it has {pixels / 1e6:.0f} million pixels, and at most {MOST_PIXELS / 1e6:.0f} million are decoded; "
                "save a smaller copy"
            )
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith(("I", "F")):
            upright = Image.fromarray(_eight_bits(np.asarray(upright)))
        small = upright.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def _eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Sixteen-bit or real pixels as bytes; Pillow would cut everything over 255 off."""
    values = pixels.astype(np.float64)
    top = 1.0 if np.issubdtype(pixels.dtype, np.floating) and values.max(initial=0) <= 1 else 255.0
    top = 65535.0 if values.max(initial=0) > 255 else top
    return np.clip(np.rint(values * (255.0 / top)), 0, 255).astype(np.uint8)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(function: Callable[[In], Out], items: Iterable[In], workers: int | None = None) -> Iterator[Out]:
    """`map` over threads, results in order, never more than a few items ahead of whoever takes them.

    Threads, because decoding, hashing and convolutions all let go of the interpreter's lock.
    """
    workers = workers or cores()
    waiting = iter(items)
    with ThreadPoolExecutor(workers) as pool:
        pending = [pool.submit(function, item) for item in islice(waiting, 2 * workers)]
        try:
            while pending:
                yield pending.pop(0).result()
                pending += [pool.submit(function, item) for item in islice(waiting, 1)]
        finally:
            for future in pending:
                future.cancel()


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error if that is a terminal; yields what moves it on by so many."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        line = bar.add_task(what, total=total)
        yield lambda count: bar.advance(line, count)
