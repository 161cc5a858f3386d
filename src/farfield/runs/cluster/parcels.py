"""What travels to a node and back: rows, plans, methods of a user's own, and the folder of a run."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray import cloudpickle

from farfield.algorithms import AlgorithmError, method, names, use
from farfield.models import ModelSpec
from farfield.models.weights import locate
from farfield.records import RunFolder
from farfield.records.atomic import write_atomic
from farfield.records.run_files import CONFIG, RESULT

#: The content of a run's folder by file name.
Files = dict[str, bytes]
#: The text of the modules that this process has made of what was sent, by their names here.
_SENT: dict[str, str] = {}


@dataclass(frozen=True)
class Packed:
    """An object whose tensors lie beside it as arrays: a node's processes read them in Ray's shared memory."""

    content: bytes
    arrays: list[NDArray[Any]]


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, arrays: list[NDArray[Any]]) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._arrays = arrays

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not torch.Tensor:
            return None
        self._arrays.append(value.detach().contiguous().numpy())
        return len(self._arrays) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrays: list[NDArray[Any]]) -> None:
        super().__init__(file)
        self._arrays = arrays

    def persistent_load(self, number: Any) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rows cannot be written to, and nobody writes to rows
            return torch.from_numpy(self._arrays[number])


def pack(value: Any) -> Packed:
    """Pack an object for nodes of the same versions. Ray itself sends pickles within a cluster."""
    file, arrays = io.BytesIO(), list[NDArray[Any]]()
    _Pickler(file, arrays).dump(value)  # type: ignore[no-untyped-call]
    return Packed(file.getvalue(), [np.ascontiguousarray(array) for array in arrays])


def unpack(packed: Packed) -> Any:
    return _Unpickler(io.BytesIO(packed.content), packed.arrays).load()


def method_sources(methods: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the modules and the source text of methods that are not farfield's, by name."""
    return {name: {**where, "source": Path(where["file"]).read_text()} for name, where in methods.items()}


def import_methods(methods: Mapping[str, Mapping[str, str]]) -> None:
    """Register methods that are not farfield's: from their module if it can be imported here, else from its text.

    A module with another text than the one that was sent is refused: its method might compute something else.
    """
    for name, where in methods.items():
        sent = False
        if name not in names():
            try:
                importlib.import_module(where["module"])
            except ImportError:
                _use_text(where)
                sent = True
        if name not in names():
            raise AlgorithmError(f"'{where['file']}' does not register '{name}' on this node")
        module = method(name).__module__
        if sent:
            _SENT[module] = where["source"]
        file = sys.modules[module].__file__
        if (_SENT[module] if module in _SENT else Path(str(file)).read_text()) != where["source"]:
            raise AlgorithmError(
                f"the method '{name}' is another one on this node: '{file}' differs from '{where['file']}'; install "
                "the same version on every node"
            )


def _use_text(where: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="farfield-methods-") as folder:
        path = Path(folder) / Path(where["file"]).name
        path.write_text(where["source"])
        use(path)


def look_for_weights(spec: ModelSpec, file: Path | None) -> None:
    """Look for pretrained weights also where the sender has them, on the same machine or a shared file system.

    Weights are taken by their hash: another file at that place is passed over.
    """
    if file is not None and file.is_file():
        locate(spec.featurizer, str(file))


def read_files(folder: Path) -> Files:
    """Return the files of a run, without its lock and without what a writer has not finished."""
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the folder of a run that came back. The result comes last, so that a kill leaves no half of a run."""
    records = RunFolder(folder)
    with records.writing():
        for name in sorted(files, key=lambda name: (name == RESULT, name == CONFIG, name)):
            if Path(name).name != name or name.startswith("."):
                raise ValueError(f"'{name}' is no file of a run")
            if name == RESULT:
                _remove_others(folder, files)
            write_atomic(folder / name, files[name])
        _remove_others(folder, files)


def _remove_others(folder: Path, files: Mapping[str, bytes]) -> None:
    """Remove what an earlier start has left: older checkpoints, and why it failed."""
    for path in folder.iterdir():
        if path.is_file() and path.name[0] != "." and path.name not in files:
            path.unlink()
