"""Find the rows that an answer shows to whoever looks for them, before it leaves, and remember those that were shown.

The gradient of a unit of the first layer by its weights is a weighted sum of rows, and the gradient by its bias is the
sum of the same weights. Where one row alone makes a unit's gradient, or the difference of two units' gradients, the
quotient of the two is that row. A server with chosen weights arranges just that. The site does the same division and
compares the results with its own rows.

It covers models whose first layer is linear in the prepared features, and these two ways of division alone: a server
that needs three units for a row is not noticed here.

A server that takes few rows in each round has most of a small site's rows in the end. So the site remembers which rows
it has shown, by their hashes, in a file that only its user can read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.federation.refusal import Refused
from farfield.models import Layout
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.checksums import DamagedFile

#: The file in the site's state folder that remembers which rows were shown.
MEMORY = "shown-rows.json"

#: A row counts as shown where a quotient is this near to it in every prepared feature.
NEAR = 0.05
#: All pairs of units are compared up to this many units; of more, those with neighbouring biases.
ALL_PAIRS = 128
#: Rows are compared in blocks of at most this many numbers.
BLOCK = 1 << 25


def shown_rows(values: Mapping[str, Any], parameters: Tensor, layout: Layout, rows: Tensor) -> Tensor:
    """Return the prepared rows that an answer shows, given the model that was asked with."""
    layer = _first_layer(layout, rows)
    if layer is None:
        return rows[:0]
    found = torch.zeros(len(rows), dtype=torch.bool)
    for value in values.values():
        if isinstance(value, Tensor) and tuple(value.shape) == (layout.parameters,):
            found |= _shown(value.double(), parameters.double(), layer, rows.double())
    return rows[found]


def shown_before(folder: Path) -> frozenset[str]:
    """Return the hashes of the rows that this site has shown so far, in whatever run."""
    try:
        return frozenset(map(str, read_checked_json(folder / MEMORY)["rows"]))
    except FileNotFoundError:
        return frozenset()
    except (DamagedFile, KeyError, TypeError):
        raise Refused("ledger") from None


def remember(folder: Path, shown: frozenset[str]) -> None:
    """Write the hashes of all rows that were shown, before the answer leaves."""
    write_checked_json(folder / MEMORY, {"rows": sorted(shown)})
    (folder / MEMORY).chmod(0o600)


def hashes_of(rows: Tensor) -> frozenset[str]:
    """Return a hash of each row. A row that is prepared otherwise in another run counts as another one."""
    return frozenset(hashlib.sha256(row.numpy().tobytes()).hexdigest()[:32] for row in rows.contiguous().cpu())


def _first_layer(layout: Layout, rows: Tensor) -> tuple[slice, slice, tuple[int, int]] | None:
    """Return where the weights and the biases of the first layer lie; None if it is not linear in the features."""
    (first, shape), *rest = layout.shapes.items()
    bias = next((name for name, size in rest[:1] if len(size) == 1 and size[0] == shape[0]), None)
    if rows.dim() != 2 or len(shape) != 2 or shape[1] != rows.shape[1] or bias is None:
        return None
    return layout.slices[first], layout.slices[bias], (shape[0], shape[1])


def _shown(update: Tensor, parameters: Tensor, layer: tuple[slice, slice, tuple[int, int]], rows: Tensor) -> Tensor:
    weights, biases = update[layer[0]].view(layer[2]), update[layer[1]]
    if len(biases) <= ALL_PAIRS:
        one, other = torch.triu_indices(len(biases), len(biases), offset=1)
    else:
        order = parameters[layer[1]].argsort()
        one, other = order[1:], order[:-1]
    weights = torch.cat([weights, weights[one] - weights[other]])
    biases = torch.cat([biases, biases[one] - biases[other]])
    told = biases.abs() > 1e-9 * biases.abs().max().clamp(min=1e-300)
    guesses = weights[told] / biases[told, None]
    found = torch.zeros(len(rows), dtype=torch.bool)
    at_once = max(1, BLOCK // max(1, rows.numel()))
    for part in torch.split(guesses, at_once):
        found |= (torch.cdist(part, rows, p=float("inf")) < NEAR).any(dim=0)
    return found
