"""The most bytes of a site's reply in a phase, by what the phase declares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from farfield.federation.phase import Sends
from farfield.federation.reply_checks import MAX_BYTES
from farfield.models import Layout

if TYPE_CHECKING:
    from farfield.deployment.server.joining import Member

#: Bytes in a reply's header for each thing that the phase sends: its name, its shape, or the number itself.
DESCRIPTION_BYTES = 1024
#: Bytes for each site of the run: a secure sum also sends something sealed for every other site.
SEALED_BYTES = 1024


def most_bytes(sends: Mapping[str, Sends], layout: Layout, members: Iterable[Member]) -> tuple[int, int]:
    """Return the most bytes of tensors in a reply, and the most bytes that describe them.

    A size that only the site knows is counted as its rows, of which no part of a reply can have more.
    """
    members = list(members)
    rows = [member.schema.rows for member in members if member.schema is not None]
    free = max([*rows, len(members)]) if len(rows) == len(members) else None
    tensors = sum(_tensor_bytes(declared, layout, free) for declared in sends.values()) + SEALED_BYTES * len(members)
    return min(tensors, MAX_BYTES), DESCRIPTION_BYTES * len(sends)


def _tensor_bytes(declared: Sends, layout: Layout, free: int | None) -> int:
    sizes = [free if size is None else size for size in declared.sizes(layout)]
    width = torch.get_default_dtype().itemsize if declared.integers is False else torch.int64.itemsize
    return width * math.prod(size for size in sizes if size is not None) if None not in sizes else MAX_BYTES
