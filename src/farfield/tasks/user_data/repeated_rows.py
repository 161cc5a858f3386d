"""Rows that occur more than once: what was trained on may then be what is validated, or held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

#: Larger arrays are not compared: reading them once more would take longer than a user likes to wait for a note.
MOST_BYTES = 200_000_000
#: Domains that a note names.
SHOWN = 3
_CHUNK = 16_000_000

Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]


def copies_noted(
    key: Keys, owner: Rows, domains: Sequence[str], name_rows: Callable[[Rows], str], aside: str = ""
) -> list[str]:
    """Notes on rows with the same key, across domains and inside them. `owner` is the number of a row's domain.

    `aside` says what was not compared.
    """
    _, group = np.unique(key, return_inverse=True)
    # A pair is a row's content in a domain: contents in several pairs are in several domains.
    pair, inside = np.unique(group * len(domains) + owner, return_inverse=True)
    in_domains = np.bincount(pair // len(domains))[group]
    here = np.bincount(inside)[inside]
    notes = []
    shared = np.flatnonzero(in_domains > 1)
    if len(shared):
        notes.append(
            f"{len(shared)} of {len(key)} rows are the same in two or more domains ({name_rows(shared)}), label "
            f"included{aside}: if these are copies, the held-out domain is not unseen"
        )
    again = np.flatnonzero(here > 1)
    if len(again):
        counts = np.bincount(owner[again], minlength=len(domains))
        most = [int(number) for number in np.argsort(-counts, kind="stable") if counts[number]]
        shown = ", ".join(f"{counts[number]} in '{domains[number]}'" for number in most[:SHOWN])
        shown += f" and more in {len(most) - SHOWN} others" if len(most) > SHOWN else ""
        notes.append(
            f"{len(again)} of {len(key)} rows occur twice or more in their own domain ({shown}; {name_rows(again)}), "
            f"label included{aside}: if these are copies, one may be among the validation rows while the other is "
            "trained on"
        )
    return notes


def row_keys(x: NDArray[np.generic], y: NDArray[np.generic]) -> Keys:
    """A hash a row, of its bytes and its label's."""
    from pandas.util import hash_array

    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    width = -(-flat.shape[1] * flat.itemsize // 8)
    # Each word is mixed first, then weighed by its place with an odd number, so that order counts.
    weights = np.random.default_rng(0).integers(0, 2**63, width + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    keys: Keys = hash_array(np.ascontiguousarray(y).astype(np.float64).view(np.uint64)) * weights[-1]
    step = max(1, _CHUNK // (8 * width))
    for start in range(0, len(flat), step):
        part = flat[start : start + step]
        words = np.zeros((len(part), 8 * width), dtype=np.uint8)
        raw = part.view(np.uint8).reshape(len(part), -1)
        words[:, : raw.shape[1]] = raw
        mixed = hash_array(words.view(np.uint64).reshape(-1)).reshape(len(part), width)
        keys[start : start + step] += (mixed * weights[:-1]).sum(axis=1, dtype=np.uint64)
    return keys
