"""Images decoded once into a memory-mapped array, found again by what the files contain.

Every file is read and hashed; the pixels are kept under a key made of these hashes. So that this is not done again at
every start, the hashes themselves are kept under a key of what the file system says of the files (folder, path, size,
inode, times), which costs no reading.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.tasks.images.cache import cached_array, read_small, write_small
from farfield.tasks.images.image_set import ImageError, ImageSet, decode, in_order, progress_bar
from farfield.tasks.note_prefixes import COPY_LEAK

#: Part of every key: a change in how files are decoded must not find pixels that were decoded otherwise.
VERSION = "1"
CHUNK = 64
#: Names of broken files that are told; with more than STOP of them there is no point in looking on.
TOLD, STOP = 5, 100
#: Nanoseconds after which a file's times can be trusted: one that is written twice within a tick of the file system's
#: clock has the same times before and after, so hashes of files that are younger than this are not kept.
SETTLED = 2_000_000_000


def digests(images: ImageSet) -> NDArray[np.uint8]:
    """The sha256 of every file, [n, 32]. Files are read only if one of them has changed since the last time."""
    now = time.time_ns()
    key, newest = _stat_key(images)
    known = read_small("hashes", key)
    if known is not None and known.shape == (len(images), 32):
        return known
    hashed = np.empty((len(images), 32), dtype=np.uint8)
    with progress_bar(f"reading {len(images)} images", len(images)) as advance:
        for start, part in zip(range(0, len(images), CHUNK), in_order(_hash_files, _chunks(images)), strict=True):
            hashed[start : start + len(part)] = part
            advance(len(part))
    if newest <= now - SETTLED:
        write_small("hashes", key, hashed)
    return hashed


def content_key(hashed: NDArray[np.uint8], *more: object) -> str:
    """A key of the files' content in order, and of what is made of it."""
    digest = hashlib.sha256(hashed.tobytes())
    digest.update(repr((VERSION, *more)).encode())
    return digest.hexdigest()[:40]


def pixels(images: ImageSet, hashed: NDArray[np.uint8], size: int) -> torch.Tensor:
    """All images as uint8 [n, 3, size, size], a tensor over a memory map."""
    return cached_array(
        "pixels",
        f"{content_key(hashed)}-{size}",
        shape=(len(images), 3, size, size),
        dtype="uint8",
        make=lambda: decoded(images, size),
    )


def read_chunk(paths: list[Path], size: int) -> tuple[NDArray[np.uint8], list[tuple[Path, str]]]:
    """Some files decoded, and those that cannot be, with the reason."""
    chunk = np.zeros((len(paths), 3, size, size), dtype=np.uint8)
    broken = []
    for i, path in enumerate(paths):
        try:
            chunk[i] = decode(path.read_bytes(), size)
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises a dozen kinds for files that are no images
            broken.append((path, _reason(error)))
    return chunk, broken


def refuse_broken(broken: list[tuple[Path, str]], root: Path, looked_at_all: bool = True) -> None:
    """One sentence for all files that cannot be decoded."""
    if not broken:
        return
    names = ", ".join(f"'{path.relative_to(root)}' ({reason})" for path, reason in broken[:TOLD])
    more = f" and {len(broken) - TOLD} more" if len(broken) > TOLD else ""
    so_far = "" if looked_at_all else " so far"
    count = f"{len(broken)} image{'s' if len(broken) > 1 else ''}{so_far}"
    raise ImageError(f"{count} in '{root}' cannot be decoded: {names}{more}; mend or remove them")


def shared_content(images: ImageSet, hashed: NDArray[np.uint8]) -> list[str]:
    """Notes on identical files: in different domains (so the held-out one is seen), classes, or side by side."""
    at: dict[bytes, list[int]] = defaultdict(list)
    for i, digest in enumerate(hashed):
        at[digest.tobytes()].append(i)
    domain_of = np.repeat(np.arange(len(images.domains)), images.sizes)
    twice = [rows for rows in at.values() if len(rows) > 1]
    across = [rows for rows in twice if len(set(domain_of[rows])) > 1]
    classes = [rows for rows in twice if len(set(images.labels[rows])) > 1]
    notes = []
    if across:
        notes.append(
            f"{COPY_LEAK}{_files(across)} in more than one domain with the same content, first "
            f"{_names(images, across)}; a held-out domain with files of the others is not unseen, so remove the copies"
        )
    if classes:
        notes.append(
            f"contradiction: {_files(classes)} in more than one class with the same content, first "
            f"{_names(images, classes)}"
        )
    return [*notes, *_copies(images, domain_of, twice)]


def _copies(images: ImageSet, domain_of: NDArray[np.int64], twice: list[list[int]]) -> list[str]:
    """A note on what lies more than once in one class of one domain: validation rows may be copies of training rows."""
    found: dict[str, list[list[int]]] = defaultdict(list)
    for rows in twice:
        places: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i in rows:
            places[int(domain_of[i]), int(images.labels[i])].append(i)
        for (domain, _), same in places.items():
            if len(same) > 1:
                found[images.domains[domain]].append(same)
    if not found:
        return []
    counts = [f"{len(groups)} in domain '{domain}'" for domain, groups in found.items()]
    more = f" and some in {len(counts) - TOLD} more domains" if len(counts) > TOLD else ""
    first = next(iter(found.values()))
    return [
        f"copies: images occur twice or more in one class of a domain, {', '.join(counts[:TOLD])}{more}, first "
        f"{_names(images, first)}; a copy of a training row may lie in the domain's validation rows"
    ]


def _files(groups: list[list[int]]) -> str:
    count = sum(map(len, groups))
    return f"{count} files lie"


def _names(images: ImageSet, groups: list[list[int]]) -> str:
    return " and ".join(f"'{images.paths[i]}'" for i in groups[0][:3])


def decoded(images: ImageSet, size: int) -> Iterator[NDArray[np.uint8]]:
    """The images in order, some at a time. After the last one, all that cannot be decoded are refused."""
    broken: list[tuple[Path, str]] = []
    done = 0
    with progress_bar(f"decoding {len(images)} images at {size} × {size}", len(images)) as advance:
        for chunk, bad in in_order(lambda paths: read_chunk(paths, size), _chunks(images)):
            broken += bad
            done += len(chunk)
            if len(broken) > STOP:
                break
            advance(len(chunk))
            yield chunk
    refuse_broken(broken, images.root, looked_at_all=done == len(images))


def _chunks(images: ImageSet, size: int = CHUNK) -> Iterable[list[Path]]:
    for start in range(0, len(images), size):
        yield [images.root / path for path in images.paths[start : start + size]]


def _hash_files(paths: list[Path]) -> NDArray[np.uint8]:
    joined = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, 32)


def _stat_key(images: ImageSet) -> tuple[str, int]:
    """A key of what the file system says of the files, and the latest time at which one of them was changed.

    The time of the inode's last change is in it because no program can set it back, as it can that of the content.
    """
    digest = hashlib.sha256(f"{images.root.resolve()}\n".encode())
    newest = 0
    for path in images.paths:
        s = (images.root / path).stat()
        digest.update(f"{path}\0{s.st_size}\0{s.st_mtime_ns}\0{s.st_ctime_ns}\0{s.st_ino}\n".encode())
        newest = max(newest, s.st_mtime_ns, s.st_ctime_ns)
    return digest.hexdigest()[:40], newest


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "no image that Pillow knows"
    return str(error).split("\n")[0] or type(error).__name__


@dataclass(frozen=True)
class HashedImages:
    """Image files with the hashes of their content."""

    images: ImageSet
    hashed: NDArray[np.uint8]

    @classmethod
    def of(cls, images: ImageSet) -> HashedImages:
        return cls(images, digests(images))

    def key(self, *more: Any) -> str:
        return content_key(self.hashed, *more)
