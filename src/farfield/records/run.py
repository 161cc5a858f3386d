"""A run is a folder: config.toml, rounds.jsonl, events.jsonl, target.sealed.jsonl, checkpoints, result.json.

Tensors are safetensors, the rest is JSON or TOML; nothing is pickled.
"""

from __future__ import annotations

import fcntl
import json
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from farfield.records.atomic import append_row, keep_rows_until, read_rows, sync, write_atomic, write_json
from farfield.records.errors import RecordsError
from farfield.records.run_files import CONFIG, EVENTS, LOCK, RESULT, ROUNDS
from farfield.records.sealed import SEALED, append_sealed

KEPT_CHECKPOINTS = 2
#: Settings that runs of older versions do not have, with the values that these runs were made with.
NEWER = {"privacy": "none", "delta": 1e-5}


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    write_atomic(path, tomli_w.dumps(_without_none(config)).encode())


def read_config(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecordsError(f"'{path}' is damaged: {error}") from error
    settings = content.get("settings")
    return {**content, "settings": _with_newer(settings)} if isinstance(settings, dict) else content


def _with_newer(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a method's settings, or those of each variant by label, with what older versions did not have."""
    if "lr" in settings and not isinstance(settings["lr"], dict):
        return {**NEWER, **settings}
    return {label: _with_newer(of) if isinstance(of, dict) else of for label, of in settings.items()}


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> str | None:
    """The first setting in which two configurations differ, as a phrase; None if they are the same."""
    old, new = _without_none(old), _without_none(new)
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            inner = difference(a, b, f"{prefix}{key}.")
            if inner:
                return inner
        elif a != b:
            return f"{prefix}{key} is {_shown(a)} there and {_shown(b)} here"
    return None


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


@contextmanager
def sole_writer(folder: Path, patience: float) -> Iterator[None]:
    """Hold a folder's lock; an error when another process still has it after `patience` seconds."""
    with open(folder / LOCK, "w") as file:
        limit = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= limit:
                    raise RecordsError(f"another process is writing to '{folder}'; let it end first") from None
                time.sleep(0.1)
        yield


@dataclass(frozen=True)
class Checkpoint:
    round: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class RunFolder:
    """The records of one run (one method, one held-out domain, one seed)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def writing(self, patience: float = 30.0) -> Iterator[None]:
        """Be the only writer. Waits a while for one that is about to end, such as a run whose parent was killed."""
        self.path.mkdir(parents=True, exist_ok=True)
        with sole_writer(self.path, patience):
            for left_over in self.path.glob(".*.partial"):  # of a writer that was killed
                left_over.unlink()
            yield

    def create(self, config: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_config(self.path / CONFIG, config)

    @property
    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    @property
    def config(self) -> dict[str, Any]:
        return read_config(self.path / CONFIG)

    @property
    def result(self) -> dict[str, Any] | None:
        path = self.path / RESULT
        return json.loads(path.read_text()) if path.exists() else None

    def finish(self, result: Mapping[str, Any]) -> None:
        write_json(self.path / RESULT, result)

    def add_round(self, row: Mapping[str, Any]) -> None:
        append_row(self.path / ROUNDS, row)

    def add_target(self, round: int, metrics: Mapping[str, Any], domain: str | None = None) -> None:
        append_sealed(self.path, round, metrics, domain)

    def add_event(self, row: Mapping[str, Any]) -> None:
        append_row(self.path / EVENTS, row)

    def rounds(self) -> list[dict[str, Any]]:
        return [row for row in read_rows(self.path / ROUNDS) if isinstance(row.get("round"), int)]

    def events(self) -> list[dict[str, Any]]:
        return list(read_rows(self.path / EVENTS))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        # A checkpoint promises that the rows before it are there, also after a power cut.
        for name in (ROUNDS, EVENTS, SEALED):
            sync(self.path / name)
        path = self.path / f"checkpoint-{checkpoint.round:06d}.safetensors"
        # safetensors refuses tensors that share memory, and two names may well hold one tensor here.
        tensors = {name: t.detach().clone().contiguous() for name, t in checkpoint.tensors.items()}
        meta = {"round": str(checkpoint.round), "meta": json.dumps(checkpoint.meta)}
        write_atomic(path, save(tensors, metadata=meta))
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The checkpoints that can be read, newest first."""
        for path in reversed(self._checkpoints()):
            try:
                with safe_open(path, framework="pt") as file:
                    written = file.metadata()
                    tensors = {name: file.get_tensor(name) for name in list(file.keys())}
                checkpoint = Checkpoint(int(written["round"]), tensors, json.loads(written["meta"]))
            except (SafetensorError, KeyError, ValueError, TypeError):
                continue  # a damaged disk; the checkpoint before it still serves
            yield checkpoint

    def latest_checkpoint(self) -> Checkpoint | None:
        return next(self.checkpoints(), None)

    def drop_checkpoint(self, round: int) -> None:
        """Forget the checkpoint of a round, so that the run goes on from the one before."""
        for path in self._checkpoints():
            if int(path.stem.split("-")[1]) == round:
                path.unlink()

    def resumable(self) -> Checkpoint | None:
        """The newest checkpoint whose rounds are all recorded: rows that a crash has lost are computed again."""
        recorded = {row["round"] for row in self.rounds()}
        complete = (c for c in self.checkpoints() if recorded.issuperset(range(1, c.round + 1)))
        return next(complete, None)

    def rewind(self, round: int) -> None:
        """Drop what was written after a round, so that it can be written again."""
        for name in (ROUNDS, EVENTS, SEALED):
            if (self.path / name).exists():
                keep_rows_until(self.path / name, round)

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoint-*.safetensors"), key=lambda path: int(path.stem.split("-")[1]))
