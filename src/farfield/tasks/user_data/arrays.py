"""A task from arrays that are in memory: a dict with a pair (x, y) for each domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.errors import UserError
from farfield.models.spec import ModelSpec
from farfield.tasks.task import Domain, Task
from farfield.tasks.user_data.groups import group_codes, group_notes
from farfield.tasks.user_data.preparation import Column, TablePreparation
from farfield.tasks.user_data.repeated_rows import MOST_BYTES, Rows, copies_noted, row_keys
from farfield.tasks.user_data.table import DEFAULTS, HIDDEN, table_model


class ArrayError(UserError):
    """Arrays that cannot become a task, in one sentence."""


def task_from_arrays(
    name: str,
    domains: Mapping[str, tuple[Any, Any]],
    *,
    classes: Sequence[str] | None = None,
    group: Mapping[str, Any] | None = None,
    model: ModelSpec | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Task:
    """A task of arrays: `{"berlin": (x, y), "oslo": (x, y)}`.

    Whole numbers or booleans in `y` are class numbers from 0 on, named by `classes`; text in `y` is the classes' names
    themselves; real numbers make a regression.
    Rows of numbers (x with two axes) are scaled, and NaN filled in, by the training rows of each run's sources. Other
    examples (images) are used as they are: float32, or uint8 for pixels. Rows that occur twice, across domains or in
    one, are in the task's notes. `group` has for each domain a name or number a row: rows of one group (a patient)
    train together or validate together.
    """
    domains = _plain(name, domains)
    if classes is not None and len(set(classes)) < len(classes):
        raise ArrayError(f"classes = {list(classes)}: a name stands there twice")
    classes_from_rows = classes is None
    classes, domains = _numbered(classes, domains)
    pairs = {domain: _pair(domain, *pair) for domain, pair in domains.items()}
    shapes = {domain: x.shape[1:] for domain, (x, _) in pairs.items()}
    if len(set(shapes.values())) > 1:
        raise ArrayError(f"the domains' examples differ in shape: {shapes}")
    regression = {y.dtype.kind == "f" for _, y in pairs.values()}
    if len(regression) > 1:
        raise ArrayError("y is real in one domain and whole in another; make it the same in all")
    names = () if regression == {True} else _classes(classes, pairs)
    vectors = len(next(iter(shapes.values()))) == 1
    made = tuple(_domain(domain, x, y, vectors) for domain, (x, y) in pairs.items())
    grouped: tuple[str, ...] = ()
    if group is not None:
        made, grouped = _with_groups(made, group)
    preparation = _preparation(made, regression == {True}) if vectors else None
    if model is None:
        model = table_model(preparation, len(names)) if preparation else array_model(made[0].x.shape[1:], len(names))
    return Task(
        name=name,
        kind="regression" if regression == {True} else "classification",
        domains=made,
        classes=names,
        model=model,
        defaults=DEFAULTS if defaults is None else defaults,
        source="arrays",
        preparation=preparation,
        classes_from_rows=classes_from_rows,
        notes=(*_shape_notes(made[0].x.shape[1:]), *_class_notes(made, names), *_notes(made), *grouped),
    )


def _plain(name: str, domains: Any) -> dict[str, tuple[Any, Any]]:
    """The domains as pairs of arrays that numpy can read, or a sentence about what was given instead."""
    if not isinstance(domains, Mapping) or not domains:
        raise ArrayError(f"task '{name}' needs a dict with a pair (x, y) for each domain, at least one")
    made = {}
    for domain, pair in domains.items():
        if not isinstance(domain, str):
            raise ArrayError(f"the domain {domain!r} needs a text as its name")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArrayError(f"domain '{domain}' needs a pair (x, y), n examples and n labels")
        if np.ma.is_masked(pair[1]):
            row = int(np.ma.getmaskarray(pair[1]).argmax()) + 1
            raise ArrayError(f"domain '{domain}' has no label in row {row}, where it is masked; leave such rows out")
        made[domain] = (_array(pair[0]), pair[1].detach() if isinstance(pair[1], torch.Tensor) else pair[1])
    return made


def _array(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach()
    # What is masked is missing.
    masked = isinstance(x, np.ma.MaskedArray) and x.dtype.kind in "buif"
    return np.ma.filled(x.astype(np.float64), np.nan) if masked else x


def array_model(shape: Sequence[int], classes: int) -> ModelSpec:
    """For examples that are no rows of numbers: a small convnet for images, else an MLP."""
    featurizer = "convnet" if len(shape) == 3 else "mlp"
    hidden = (32, 64) if featurizer == "convnet" else HIDDEN
    return ModelSpec(featurizer=featurizer, input_shape=tuple(shape), outputs=classes or 1, hidden=hidden)


def array_domain(name: str, x: Any, y: Any) -> Domain:
    """One domain of arrays as a task holds it. Raises ArrayError, one sentence, for what cannot be used."""
    x, y = _pair(name, x, y)
    return _domain(name, x, y, vectors=x.ndim == 2)


def _numbered(
    classes: Sequence[str] | None, domains: Mapping[str, tuple[Any, Any]]
) -> tuple[Sequence[str] | None, Mapping[str, tuple[Any, Any]]]:
    """Labels that are names, as class numbers. Without `classes`, these are the names by the alphabet."""
    texts = {domain: _as_names(domain, y) for domain, (_, y) in domains.items()}
    if any(y.dtype.kind != "U" or y.ndim != 1 for y in texts.values()):
        return classes, domains
    names = sorted({str(name) for y in texts.values() for name in y}) if classes is None else list(classes)
    numbers = {name: number for number, name in enumerate(names)}
    made = {}
    for domain, (x, _) in domains.items():
        codes = np.array([numbers.get(str(name), -1) for name in texts[domain]], dtype=np.int64)
        if (codes < 0).any():
            row = int((codes < 0).argmax())
            raise ArrayError(
                f"domain '{domain}' has the label '{texts[domain][row]}' in row {row + 1}, which is none of the "
                f"classes {', '.join(names)}"
            )
        made[domain] = (x, codes)
    return names, made


def _as_names(domain: str, y: Any) -> NDArray[Any]:
    """Labels as text where they are: from a data frame they are objects, from some files bytes."""
    labels = np.asarray(y)
    if labels.dtype.kind == "S":
        return np.char.decode(labels, "utf-8")
    if labels.dtype.kind == "U" and not isinstance(y, np.ndarray):
        labels = np.asarray(y, dtype=object)  # of a list with a gap, numpy makes the text 'nan'
    if labels.dtype.kind != "O" or labels.ndim != 1 or not any(isinstance(cell, str) for cell in labels):
        return labels
    for row, cell in enumerate(labels, start=1):
        if not isinstance(cell, str):
            raise ArrayError(
                f"domain '{domain}' has the label {cell!r} in row {row}, where the name of a class belongs"
            )
    return labels.astype(str)


def _pair(domain: str, x: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype.kind not in "buif" or y.dtype.kind not in "buif":
        raise ArrayError(
            f"domain '{domain}' has arrays of {x.dtype} and {y.dtype}; both must hold numbers (y may hold the classes' "
            "names, in all domains)"
        )
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y) or not x.size:
        raise ArrayError(
            f"domain '{domain}' has x of shape {x.shape} and y of shape {y.shape}; give n examples and n labels"
        )
    if y.dtype.kind == "f":
        strange = ~(np.abs(y) <= np.finfo(np.float32).max)
        if strange.any():
            row = int(strange.argmax()) + 1
            raise ArrayError(f"domain '{domain}' has a label that is not finite or far too large, in row {row}")
    return x, y


def _classes(classes: Sequence[str] | None, pairs: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> tuple[str, ...]:
    least = min(int(y.min()) for _, y in pairs.values())
    most = max(int(y.max()) for _, y in pairs.values())
    rows = sum(len(y) for _, y in pairs.values())
    if classes is None and most >= rows:
        raise ArrayError(
            f"labels go up to {most} in {rows} rows: whole numbers are class numbers, counted from 0; give the "
            "classes' names as text, or real numbers for a regression"
        )
    names = tuple(classes) if classes is not None else tuple(str(number) for number in range(most + 1))
    if least < 0 or most >= len(names) or len(names) < 2:
        raise ArrayError(f"labels go from {least} to {most}, but there are {len(names)} classes, counted from 0")
    return names


def _domain(name: str, x: NDArray[Any], y: NDArray[Any], vectors: bool) -> Domain:
    kind = np.float64 if vectors else np.uint8 if x.dtype == np.uint8 else np.float32
    labels = y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    return Domain(name, torch.from_numpy(x.astype(kind)), torch.from_numpy(labels))


def _with_groups(domains: Sequence[Domain], group: Mapping[str, Any]) -> tuple[tuple[Domain, ...], tuple[str, ...]]:
    """The domains with a number of its group for each row, and notes on groups in several domains."""
    import pandas as pd

    parts = []
    for domain in domains:
        if domain.name not in group:
            raise ArrayError(f"group has nothing for domain '{domain.name}'; give a name for each of its rows")
        part = np.asarray(group[domain.name])
        if part.shape != (len(domain),):
            raise ArrayError(f"domain '{domain.name}' has {len(domain)} rows and groups of shape {part.shape}")
        parts.append(part)
    names = [name for part in parts for name in part.tolist()]
    texts = pd.Series([None if pd.isna(name) else str(name) for name in names], dtype=object)
    codes = group_codes(texts)
    owner = np.repeat(np.arange(len(domains)), [len(domain) for domain in domains])
    notes = group_notes(
        "the arrays", codes, owner, [d.name for d in domains], lambda code: texts[int(np.argmax(codes == code))]
    )
    split = np.split(codes, np.cumsum([len(domain) for domain in domains])[:-1])
    made = tuple(replace(d, groups=torch.from_numpy(part)) for d, part in zip(domains, split, strict=True))
    return made, tuple(notes)


def _class_notes(domains: Sequence[Domain], classes: Sequence[str]) -> tuple[str, ...]:
    """Classes that nobody has: labels that count from 1, say."""
    present = {int(code) for domain in domains for code in np.unique(domain.y.numpy())} if classes else set()
    absent = [name for code, name in enumerate(classes) if code not in present]
    if not absent:
        return ()
    return (f"no row has the class {', '.join(absent[:5])}{', …' if absent[5:] else ''}: class numbers count from 0",)


def _shape_notes(shape: Sequence[int]) -> tuple[str, ...]:
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or shape[0] <= 4:
        return ()
    return (
        f"examples have the shape {tuple(shape)}, read as {shape[0]} channels of {shape[1]} × {shape[2]}; if the "
        "channels are the last axis, move it: x.transpose(0, 3, 1, 2)",
    )


def _notes(domains: Sequence[Domain]) -> tuple[str, ...]:
    """Rows that occur more than once; counted from 1 in their domain, as everywhere."""
    size = sum(domain.x.nbytes for domain in domains)
    if size > MOST_BYTES:
        return (f"the arrays have {size / 1e6:,.0f} MB and were not searched for rows that occur twice",)
    key = np.concatenate([row_keys(domain.x.numpy(), domain.y.numpy()) for domain in domains])
    starts = np.cumsum([0, *map(len, domains)])
    owner = np.repeat(np.arange(len(domains)), [len(domain) for domain in domains])

    def first(rows: Rows) -> str:
        number = int(owner[rows[0]])
        return f"first row {rows[0] - starts[number] + 1} of '{domains[number].name}'"

    return tuple(copies_noted(key, owner, [domain.name for domain in domains], first))


def _preparation(domains: Sequence[Domain], regression: bool) -> TablePreparation:
    missing = torch.stack([torch.isnan(domain.x).any(dim=0) for domain in domains]).any(dim=0)
    columns = tuple(Column(f"x{number}", "number", missing=bool(flag)) for number, flag in enumerate(missing))
    return TablePreparation(columns, scale_label=regression)
