"""Examples with their true labels, from files of a new site: what a trained model is measured on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.models import ModelSpec
from farfield.reproducibility.devices import CPU
from farfield.tasks.images.image_set import ImageInput
from farfield.tasks.images.layouts import LEVELS, SPLITS
from farfield.tasks.unpacking import array_names, load_npy, load_npz
from farfield.tasks.user_data.bag_of_words import FittedWords
from farfield.tasks.user_data.columns import as_levels, as_text, encode, encode_unlabelled, is_code
from farfield.tasks.user_data.preparation import Column, FittedTable
from farfield.tasks.user_data.table_file import is_table, need_columns, read_frame, rows_named
from farfield.tasks.user_data.yes_and_no import as_classes
from farfield.trained.examples import ExamplesError, fold, from_array, read_examples

if TYPE_CHECKING:
    from pandas import DataFrame

Texts = NDArray[np.object_]
#: The domain of rows that have none.
NO_DOMAIN = "(no domain)"


@dataclass(frozen=True)
class Labelled:
    """Examples as the model takes them, with what is true of them. Rows without a label are not here any more."""

    x: Tensor
    #: The label of each row: class names as text, or the numbers of a regression.
    labels: Texts | NDArray[np.float64]
    #: The domain of each row; empty texts where the data names none.
    domains: Texts
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reader:
    """How one model's files are read: what it takes, and what its labels are."""

    spec: ModelSpec
    preparation: FittedTable | FittedWords | None
    way: ImageInput | None
    classes: tuple[str, ...]
    #: Where features of images are computed.
    device: torch.device = CPU

    def read(self, paths: Sequence[Path], label: str | None, domain: str | None) -> Labelled:
        """Rows of a table, arrays, or folders of images, each with labels in its own way."""
        if len(paths) == 1 and is_table(paths[0]):
            return self._table(paths[0], label, domain)
        if len(paths) == 1 and paths[0].suffix in (".npy", ".npz"):
            return self._arrays(paths[0], label, domain)
        examples = read_examples(paths, self.spec, self.preparation, self.way, self.device)
        for option, value in (("--label", label), ("--domain", domain)):
            if value is not None:
                raise ExamplesError(f"{option} is for tables and arrays; of images the folders' names tell both")
        labels, domains = self._from_folders(examples.files, paths)
        return Labelled(examples.x, labels, domains, examples.notes)

    def _table(self, path: Path, label: str | None, domain: str | None) -> Labelled:
        table = self.preparation if isinstance(self.preparation, FittedTable) else None
        other = () if table is None else table.other
        inputs = set() if table is None else {fitted.column.name for fitted in table.columns}
        # A domain's names stay as they are written, unless the model reads the column as numbers.
        named = [name for name in ([domain] if domain is not None else other[1:2]) if name not in inputs]
        # So do the names of classes where one is a code such as 01.
        codes = [label or other[0]] if any(map(is_code, self.classes)) and (label or other) else []
        frame = read_frame(path, texts=[*named, *codes, *(() if table is None else table.categories)])
        label = label or next((name for name in other[:1] if name in frame.columns), None)
        if label is None and other:
            raise ExamplesError(
                f"'{path.name}' has no column '{other[0]}', the model's label; give --label, the column that says what "
                "is true"
            )
        if label is None:
            raise ExamplesError(f"give --label, the column of '{path.name}' that says what is true")
        need_columns(frame, [label], "the label")
        if domain is not None:
            need_columns(frame, [domain], "the domain")
        domain = domain or next((name for name in other[1:2] if name in frame.columns), None)
        missing = frame.index[frame[label].isna()]
        if len(missing) == len(frame):
            raise ExamplesError(f"the label column '{label}' of '{path.name}' has no values")
        notes = [f"left out what has no label: {rows_named(missing)}"] if len(missing) else []
        frame = frame.drop(missing)
        if isinstance(self.preparation, FittedTable):
            raw, said = encode_unlabelled(frame, self.preparation.columns)
            x = self.preparation.apply(torch.from_numpy(raw))
            notes += said
        else:
            x = self._plain_rows(path, frame.drop(columns=[name for name in (label, domain) if name is not None]))
        if self.classes:
            labels: Texts | NDArray[np.float64] = as_classes(as_levels(frame[label]), self.classes).to_numpy(
                dtype=object
            )
        else:
            labels = encode(frame[[label]], [Column(label, "number")])[:, 0]
            infinite = frame.index[np.abs(labels) > np.finfo(np.float32).max]
            if len(infinite):
                raise ExamplesError(
                    f"the label '{label}' of '{path.name}' has an infinite or far too large value in "
                    f"{rows_named(infinite)}; mend it, or leave the cell empty to leave the row out"
                )
        return Labelled(x, labels, _domains(frame, domain), tuple(notes))

    def _plain_rows(self, path: Path, frame: DataFrame) -> Tensor:
        """A table for a model of arrays: its other columns are the numbers of an example."""
        raw = encode(frame, [Column(name, "number") for name in frame.columns])
        x = fold(path, torch.from_numpy(raw).to(torch.get_default_dtype()), self.spec.input_shape)
        return x if self.preparation is None else self.preparation.apply(x)

    def _arrays(self, path: Path, label: str | None, domain: str | None) -> Labelled:
        if path.suffix == ".npy":
            if label is None:
                raise ExamplesError(f"'{path.name}' holds no labels; give --label FILE.npy, or one .npz with x and y")
            given = {"y": _load(Path(label), None)} | ({} if domain is None else {"d": _load(Path(domain), None)})
        else:
            given = {"y": _load(path, label or "y")}
            if domain is not None or "domain" in _names(path):
                given["d"] = _load(path, domain or "domain")
        x, notes = from_array(path, self.spec, self.preparation, self.way, self.device)
        for what, values in given.items():
            if values.shape != (len(x),):
                kind = "labels" if what == "y" else "domains"
                raise ExamplesError(f"'{path.name}' has {len(x)} examples, and {kind} of shape {values.shape}")
        domains = given["d"].astype(str).astype(object) if "d" in given else np.full(len(x), "", dtype=object)
        return Labelled(x, self._array_labels(path, given["y"]), domains, notes)

    def _array_labels(self, path: Path, y: NDArray[Any]) -> Texts | NDArray[np.float64]:
        if not self.classes:
            if y.dtype.kind not in "buif" or not (np.abs(y.astype(np.float64)) <= np.finfo(np.float32).max).all():
                raise ExamplesError(f"the labels of '{path.name}' are not all finite numbers, as this model predicts")
            return y.astype(np.float64)
        if y.dtype.kind in "bui":  # class numbers, as task_from_arrays takes them
            names = dict(enumerate(self.classes))
            return np.array([names.get(int(number), str(number)) for number in y], dtype=object)
        if y.dtype.kind not in "US":
            raise ExamplesError(f"the labels of '{path.name}' are {y.dtype}; give class numbers from 0 on, or names")
        return y.astype(str).astype(object)

    def _from_folders(self, files: Sequence[str], paths: Sequence[Path]) -> tuple[Texts, Texts]:
        """Class and domain of images by the folders that they lie in: class/*.png, or domain/class/*.png."""
        if not files:
            raise ExamplesError(f"'{paths[0]}' has no labels: give a table, a .npz, or folders of images")
        known = set(self.classes)
        # Images that lie in no folder below it lie in the one around everything that was given.
        around_all = Path(os.path.commonpath([p.resolve() if p.is_dir() else p.resolve().parent for p in paths]))
        top = around_all.name
        # A folder of classes is a domain's own, and its name that of the domain.
        whole = around_all.parent.name if top in known else top
        if not any(Path(file).parts[:-1] for file in files) and top not in known:
            raise ExamplesError(
                f"the images of '{paths[0]}' lie in no folder of a class, so nobody knows what they show: the layout "
                f"is class/*.png, with the classes {', '.join(self.classes[:5])}{', …' if self.classes[5:] else ''}"
            )
        labels, domains = [], []
        for file in files:
            folders = Path(file).parts[:-1] or (top,)
            # The first folder that is named like a class; what lies around it is the domain.
            at = next((i for i, name in enumerate(folders) if name in known), len(folders) - 1)
            around = [name for name in folders[:at] if name not in (*SPLITS, *LEVELS, "full")]
            labels.append(folders[at])
            domains.append("/".join(around) or whole)
        return np.array(labels, dtype=object), np.array(domains, dtype=object)


def _domains(frame: DataFrame, domain: str | None) -> Texts:
    if domain is None:
        return np.full(len(frame), "", dtype=object)
    texts = as_text(frame[domain])
    named: Texts = texts.where(texts.notna(), NO_DOMAIN).to_numpy(dtype=object)
    return named


def _names(path: Path) -> Mapping[str, Any] | Sequence[str]:
    return array_names(path)


def _load(path: Path, name: str | None) -> NDArray[Any]:
    """The array `name` of a .npz file, or the one of a .npy file."""
    if not path.exists():
        raise ExamplesError(f"there is no file '{path}'")
    if name is None:
        return load_npy(path)
    arrays = load_npz(path, (name,))
    if name not in arrays:
        raise ExamplesError(f"'{path}' has no array '{name}'; it has {', '.join(array_names(path)) or 'none'}")
    return arrays[name]
