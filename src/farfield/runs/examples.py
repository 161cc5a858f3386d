"""What the domains look like, for the report: small pictures of some rows, or the columns that shift most.

Written beside the runs as `examples.json`. Pictures show rows of the data: a page with them is as private as the data.
"""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from farfield.records.bench_folder import EXAMPLES
from farfield.records.checked_files import write_checked_json
from farfield.tasks.task import Domain, Task
from farfield.tasks.user_data.preparation import TablePreparation

#: Pictures of a domain, domains with pictures, and their longer side in pixels.
PICTURES = 8
MOST_DOMAINS = 12
SIDE = 64
#: Columns of a table that are named, and domains whose figures are given for each.
COLUMNS = 8
#: Rows of a domain that are looked at.
ROWS = 20_000


def write_examples(task: Task, out: Path) -> None:
    """Write `examples.json` for a task of images or of table columns; nothing for others."""
    content = examples(task)
    if content is not None:
        write_checked_json(out / EXAMPLES, content)


def examples(task: Task) -> dict[str, Any] | None:
    """Return pictures per domain, or the columns that shift most; None where rows are neither."""
    if isinstance(task.preparation, TablePreparation):
        return {"kind": "columns", "columns": shifting_columns(task)}
    shape = tuple(task.domains[0].x.shape[1:])
    if len(shape) == 3 and shape[0] in (1, 3):
        return {"kind": "images", "domains": {d.name: _pictures(d, task) for d in task.domains[:MOST_DOMAINS]}}
    return None


def _pictures(domain: Domain, task: Task) -> list[dict[str, str]]:
    """Some rows of a domain, of as many classes as there is room for."""
    if task.kind == "classification":
        by_class = [(domain.y == code).nonzero().flatten() for code in range(len(task.classes))]
        # One row of each class in turn, then the second row of each, until there are enough.
        depth = range(max(len(rows) for rows in by_class))
        rows = [int(of[i]) for i in depth[:PICTURES] for of in by_class if i < len(of)][:PICTURES]
    else:
        rows = np.linspace(0, len(domain) - 1, min(PICTURES, len(domain))).astype(int).tolist()
    labels = [task.classes[int(domain.y[row])] if task.classes else f"{float(domain.y[row]):g}" for row in rows]
    return [{"label": label, "png": _png(domain.x[row])} for row, label in zip(rows, labels, strict=True)]


def _png(x: torch.Tensor) -> str:
    pixels: NDArray[Any] = x.numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        pixels = np.round(255 * (pixels - low) / ((high - low) or 1.0)).astype(np.uint8)
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def shifting_columns(task: Task) -> list[dict[str, Any]]:
    """The columns whose content differs most between domains, the most first.

    `shift` of numbers: the standard deviation of the domains' means, over the pooled standard deviation within domains.
    Of categories: the largest distance (total variation, 0 to 1) between a domain's shares and those of all rows. A
    column that is empty in a domain counts with the domains that have it; `missing` has each domain's share of empty
    cells.
    """
    assert isinstance(task.preparation, TablePreparation)
    tables = {d.name: d.x[:ROWS].double().numpy() for d in task.domains}
    found: list[dict[str, Any]] = []
    for i, column in enumerate(task.preparation.columns):
        cells = {name: x[:, i] for name, x in tables.items()}
        known = {name: of[~np.isnan(of)] for name, of in cells.items()}
        known = {name: of for name, of in known.items() if len(of)}
        if len(known) < 2:
            continue
        category = column.kind == "category"
        shift = _category_shift(known) if category else _number_shift(known)
        if not math.isfinite(shift):
            continue
        found.append(
            {
                "name": column.name,
                "kind": column.kind,
                "shift": shift,
                "means": {} if category else {name: float(of.mean()) for name, of in known.items()},
                "missing": {name: float(np.isnan(of).mean()) for name, of in cells.items()},
            }
        )
    return sorted(found, key=lambda of: -float(of["shift"]))[:COLUMNS]


def _number_shift(known: dict[str, NDArray[np.float64]]) -> float:
    means = np.array([of.mean() for of in known.values()])
    within = math.sqrt(sum(len(of) * of.var() for of in known.values()) / sum(len(of) for of in known.values()))
    spread = float(means.std())
    return spread / within if within else (math.inf if spread else 0.0)


def _category_shift(known: dict[str, NDArray[np.float64]]) -> float:
    levels = np.unique(np.concatenate(list(known.values())))
    shares = np.array([[float((of == level).mean()) for level in levels] for of in known.values()])
    counts = np.array([len(of) for of in known.values()], dtype=np.float64)
    pooled = counts @ shares / counts.sum()
    return float((np.abs(shares - pooled).sum(axis=1) / 2).max())
