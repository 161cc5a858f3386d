"""The rows that a diagnosis looks at, and the cheap features that all domains share.

Rows of a table go through the task's own preparation, fitted on the pooled rows; images are reduced to 16 × 16 pixels;
features of a frozen backbone are taken as they are. What does not vary is left out, the rest is standardised over all
domains, and more than `MOST_FEATURES` numbers become that many principal components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from farfield.reproducibility.randomness import derive_seed
from farfield.tasks.task import Domain, Fitted, Task
from farfield.tasks.user_data.preparation import TablePreparation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: With fewer rows, nothing is said of a domain but its labels.
LEAST_ROWS = 10
#: More domains than this are not compared with one another: 170 would make 14,365 pairs.
MOST_DOMAINS = 24
MOST_FEATURES = 40
#: Images are reduced to so many pixels a side.
SIDE = 16
#: Standardised values stay within so many deviations, so that one mistyped cell does not decide.
FURTHEST = 5.0


@dataclass(frozen=True)
class Sample:
    """Rows of the compared domains, in the order of the domains."""

    task: Task
    #: The compared domains, a part of the task's.
    domains: tuple[Domain, ...]
    #: Row numbers in each compared domain.
    rows: tuple[Ints, ...]
    #: Inputs as the task's model takes them.
    inputs: Tensor
    #: Class numbers, or standardised numbers to predict.
    y: NDArray[np.generic]
    #: The number of each row's domain among `domains`.
    owner: Ints
    #: Standardised features, [rows, d]; d is 0 where nothing varies.
    z: Floats
    #: Columns with names, before any reduction, [rows, columns]; None where inputs have no columns.
    columns: Floats | None
    names: tuple[str, ...]
    features: str
    notes: tuple[str, ...]
    seed: int

    @property
    def domain_names(self) -> list[str]:
        return [domain.name for domain in self.domains]

    @property
    def classes(self) -> int:
        return len(self.task.classes)

    def draw(self, purpose: str) -> np.random.Generator:
        """A generator of its own for each purpose."""
        return np.random.default_rng(derive_seed(self.seed, "diagnose", purpose))


def usable_rows(domain: Domain) -> Ints:
    """The rows that can be described: not those outside the data set's own split."""
    keep = np.ones(len(domain), dtype=bool)
    if domain.outside is not None:
        keep[domain.outside.numpy()] = False
    return np.flatnonzero(keep).astype(np.int64)


def take_sample(task: Task, *, rows: int, total: int, seed: int) -> Sample:
    """Choose domains and rows, prepare them, and make the shared features."""
    notes: list[str] = []
    compared = _compared(task, notes)
    most = max(LEAST_ROWS, min(rows, total // max(len(compared), 1)))
    chosen, sampled, grouped = [], False, False
    for domain in compared:
        draw = np.random.default_rng(derive_seed(seed, "diagnose", "rows", domain.name))
        usable = usable_rows(domain)
        if domain.groups is not None:
            shuffled = draw.permutation(usable)
            _, first = np.unique(domain.groups.numpy()[shuffled], return_index=True)
            grouped |= len(first) < len(usable)
            usable = np.sort(shuffled[first])
        if len(usable) > most:
            sampled = True
            usable = np.sort(draw.choice(usable, most, replace=False))
        chosen.append(usable)
    if sampled:
        notes.append(
            f"shift is measured on {sum(map(len, chosen)):,} rows: at most {most} of a domain, drawn at random"
        )
    if grouped:
        notes.append("one row of each group is used: rows of one patient or burst are not independent")
    fitted = None
    if task.preparation is not None and compared:
        fitted = task.preparation.fit([(d, torch.from_numpy(usable_rows(d))) for d in compared])
    inputs = _inputs(compared, chosen, fitted, task)
    broken = int((~torch.isfinite(inputs.flatten(1))).any(dim=1).sum())
    if broken:
        notes.append(f"{broken} of the rows have values that are not finite; each is taken as 0")
        inputs = inputs.nan_to_num(0.0, 0.0, 0.0)
    y = np.concatenate([d.y.numpy()[r] for d, r in zip(compared, chosen, strict=True)]) if compared else np.zeros(0)
    if task.kind == "regression":
        y = y.astype(np.float64)
        y = (y - y.mean()) / (y.std() or 1.0) if len(y) else y
    owner = np.repeat(np.arange(len(compared)), [len(r) for r in chosen]).astype(np.int64)
    columns, names = _columns(task, inputs)
    z, features = _features(inputs, len(names) > 0)
    return Sample(
        task, tuple(compared), tuple(chosen), inputs, y, owner, z, columns, names, features, tuple(notes), seed
    )


def _compared(task: Task, notes: list[str]) -> list[Domain]:
    sizes = {domain.name: _independent_rows(domain) for domain in task.domains}
    large = [domain for domain in task.domains if sizes[domain.name] >= LEAST_ROWS]
    small = [domain.name for domain in task.domains if sizes[domain.name] < LEAST_ROWS]
    if small:
        shown = ", ".join(f"'{name}'" for name in small[:3]) + (f" and {len(small) - 3} more" if small[3:] else "")
        notes.append(f"too few rows to compare (fewer than {LEAST_ROWS}): {shown}")
    if len(large) > MOST_DOMAINS:
        kept = {d.name for d in sorted(large, key=lambda d: -sizes[d.name])[:MOST_DOMAINS]}
        notes.append(
            f"the {MOST_DOMAINS} domains with the most rows of {len(large)} are compared with one another "
            f"({MOST_DOMAINS * (MOST_DOMAINS - 1) // 2} pairs instead of {len(large) * (len(large) - 1) // 2:,}); "
            "label shift and exact copies are searched for in all"
        )
        large = [domain for domain in large if domain.name in kept]
    return large


def _independent_rows(domain: Domain) -> int:
    """The number of usable rows, those of one group counted once."""
    rows = usable_rows(domain)
    return len(rows) if domain.groups is None else len(np.unique(domain.groups.numpy()[rows]))


def _inputs(domains: list[Domain], rows: list[Ints], fitted: Fitted | None, task: Task) -> Tensor:
    parts = []
    for domain, chosen in zip(domains, rows, strict=True):
        x = domain.x[torch.from_numpy(chosen)]
        x = x if fitted is None else fitted.apply(x)
        parts.append(x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x.to(torch.float32))
    return torch.cat(parts) if parts else torch.zeros((0, *task.model.input_shape))


def _columns(task: Task, inputs: Tensor) -> tuple[Floats | None, tuple[str, ...]]:
    """Named columns of a table, as prepared; none for images."""
    if inputs.dim() != 2 or task.input is not None or task.images is not None:
        return None, ()
    preparation = task.preparation
    if not isinstance(preparation, TablePreparation):
        return inputs.numpy().astype(np.float64), tuple(f"x{number}" for number in range(inputs.shape[1]))
    names: list[str] = []
    for column in preparation.columns:
        levels = [f"{column.name} = {level}" for level in column.levels]
        names += [*(levels if column.kind == "category" else [column.name])]
        names += [f"{column.name} is missing"] * column.missing
    return inputs.numpy().astype(np.float64), tuple(names)


def _features(inputs: Tensor, table: bool) -> tuple[Floats, str]:
    flat, what = inputs, "columns" if table else "features"
    if inputs.dim() == 4:
        if max(inputs.shape[2:]) > SIDE:
            flat = F.adaptive_avg_pool2d(inputs, SIDE)
        what = f"pixels ({' × '.join(map(str, flat.shape[1:]))})"
    x = flat.flatten(1).numpy().astype(np.float64)
    deviation = x.std(axis=0) if len(x) else np.zeros(x.shape[1])
    varies = deviation > 1e-9 * (np.abs(x).max(axis=0) + 1e-30) if len(x) else np.zeros(x.shape[1], bool)
    x, deviation = x[:, varies], deviation[varies]
    if not x.shape[1]:
        return np.zeros((len(x), 0)), "nothing: no column varies"
    z: Floats = ((x - x.mean(axis=0)) / deviation).clip(-FURTHEST, FURTHEST)
    if z.shape[1] <= MOST_FEATURES:
        return z, f"{z.shape[1]} standardised {what}"
    # The largest components of the standardised features, by the smaller of the two Gram matrices.
    centred = z - z.mean(axis=0)
    if centred.shape[1] <= len(centred):
        _, vectors = np.linalg.eigh(centred.T @ centred)
        parts = centred @ vectors[:, ::-1][:, :MOST_FEATURES]
    else:
        values, vectors = np.linalg.eigh(centred @ centred.T)
        parts = (vectors * np.sqrt(values.clip(0)))[:, ::-1][:, :MOST_FEATURES]
    spread = parts.std(axis=0)
    parts = parts[:, spread > 1e-9]
    reduced: Floats = (parts / spread[spread > 1e-9]).clip(-FURTHEST, FURTHEST)
    return reduced, f"{reduced.shape[1]} principal components of {z.shape[1]} standardised {what}"
