"""How the clients of one request become stacks whose rounding depends on the number of clients.

Such stacks (`FunctionalStack`) are never shared by runs, and nothing but the request says how its clients are split:
not the other runs, nor how much memory there was before. So a run has the same bits alone and among others, and after
a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from farfield.federation.phase import is_local_training

#: Clients in a stack at most: nearly all of the gain is there at this number.
MOST_CLIENTS = 32
#: Numbers in the parameters of a stack at most. It decides the last bits of a result, so it stays as it is.
MOST_NUMBERS = 1 << 24
#: Rows in a mini-batch of a stack at most; all outputs of all layers are held for them.
MOST_ROWS = 2048
#: What a mini-batch of all rows of a client is taken for.
ALL_ROWS = 1024
TOO_LARGE = "two such models, or two such mini-batches, are more than a stack may hold"


def most_together(algorithm: Any, phase: str, parameters: int) -> int:
    """Return how many clients may be in one stack."""
    most = min(MOST_CLIENTS, MOST_NUMBERS // max(1, parameters))
    if is_local_training(getattr(algorithm, phase)):
        most = min(most, MOST_ROWS // (algorithm.params.batch_size or ALL_ROWS))
    return max(1, most)


def own_parts(clients: Sequence[int], most: int) -> list[list[int]]:
    """Return clients in their order, split into as few stacks as can be, of about equal size."""
    ordered = sorted(clients)
    stacks = max(1, -(-len(ordered) // most))
    bounds = [len(ordered) * number // stacks for number in range(stacks + 1)]
    return [ordered[first:last] for first, last in pairwise(bounds)]
