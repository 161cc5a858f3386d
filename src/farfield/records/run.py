"""A run is a folder: config.toml, rounds.jsonl, events.jsonl, target.sealed.jsonl, checkpoints, result.json.

Tensors are safetensors, the rest is JSON or TOML; nothing is pickled.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor

from farfield.records.atomic import append_row, keep_rows_until, read_rows, rounds_before_damage, sync
from farfield.records.checked_files import read_checked_json, read_checked_toml, write_checked_json, write_checked_toml
from farfield.records.checked_tensors import load_checked, save_checked
from farfield.records.checksums import UNREADABLE, DamagedFile
from farfield.records.locking import ALONE, locked
from farfield.records.run_files import CONFIG, EVENTS, LOCK, RESULT, ROUNDS
from farfield.records.sealed import SEALED, append_sealed

KEPT_CHECKPOINTS = 2
_CHECKPOINT = re.compile(r"checkpoint-[0-9]{1,12}\.safetensors")
#: The entries of a checkpoint's metadata.
_WRITTEN = frozenset({"round", "meta"})
#: Settings that runs of older versions do not have, with the values that these runs were made with.
NEWER = {"privacy": "none", "delta": 1e-5}


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write a configuration with its checksum."""
    write_checked_toml(path, tomli_w.dumps(_without_none(config)))


def read_config(path: Path) -> dict[str, Any]:
    """Return a configuration. Raises RecordsError where the file is not as it was written."""
    content = read_checked_toml(path)
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
    with locked(folder / LOCK, ALONE, patience, f"another process is writing to '{folder}'; let it end first"):
        yield


@dataclass(frozen=True)
class Checkpoint:
    round: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def is_finite(self) -> bool:
        """Whether every number in it is finite."""
        return all(bool(t.isfinite().all()) for t in self.tensors.values() if t.is_floating_point())


class RunFolder:
    """The records of one run (one method, one held-out domain, one seed)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The files of this run that were found damaged when a place to go on from was looked for.
        self.damaged: list[str] = []

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
        """What came out; None for a run that has not ended. Raises RecordsError where the file is damaged."""
        path = self.path / RESULT
        return read_checked_json(path) if path.exists() else None

    def finish(self, result: Mapping[str, Any]) -> None:
        write_checked_json(self.path / RESULT, result)

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
        save_checked(path, checkpoint.tensors, {"round": str(checkpoint.round), "meta": json.dumps(checkpoint.meta)})
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The checkpoints that are as they were written, newest first; `damaged` names the others that were met."""
        for path in reversed(self._checkpoints()):
            try:
                tensors, written = load_checked(path, _WRITTEN)
                meta = json.loads(written["meta"])
                if not isinstance(meta, dict):
                    raise DamagedFile(f"'{path}' is damaged: its 'meta' is no JSON object")
                checkpoint = Checkpoint(int(written["round"]), tensors, meta)
            except (OSError, *UNREADABLE):  # a damaged disk; the checkpoint before it still serves
                if path.name not in self.damaged:
                    self.damaged.append(path.name)
                continue
            yield checkpoint

    def latest_checkpoint(self) -> Checkpoint | None:
        return next(self.checkpoints(), None)

    def drop_checkpoint(self, round: int) -> None:
        """Forget the checkpoint of a round, so that the run goes on from the one before."""
        for path in self._checkpoints():
            if int(path.stem.split("-")[1]) == round:
                path.unlink()

    def resumable(self) -> Checkpoint | None:
        """The newest checkpoint whose rows are all recorded: those that a crash or a disk has lost are computed again.

        One with a number that is not finite is of no use, and the one before it is taken. Rows of events are remarks: a
        damaged one is lost, and the run goes on.
        """
        recorded = {row["round"] for row in self.rounds()}
        whole = rounds_before_damage(self.path / SEALED)
        self.damaged += [name for name in (ROUNDS, EVENTS, SEALED) if rounds_before_damage(self.path / name) < math.inf]
        complete = (c for c in self.checkpoints() if c.round <= whole and recorded.issuperset(range(1, c.round + 1)))
        return next((c for c in complete if c.is_finite), None)

    def newest_round(self) -> int | None:
        """Return the round of the newest checkpoint file, whether or not it can be used; None if there is none."""
        newest = self._checkpoints()[-1:]
        return int(newest[0].stem.split("-")[1]) if newest else None

    def rewind(self, round: int) -> None:
        """Drop what was written after a round, so that it can be written again."""
        for path in self._checkpoints():  # a damaged one would else count among those that are kept
            if int(path.stem.split("-")[1]) > round:
                path.unlink()
        for name in (ROUNDS, EVENTS, SEALED):
            if (self.path / name).exists():
                keep_rows_until(self.path / name, round)

    def _checkpoints(self) -> list[Path]:
        found = [path for path in self.path.glob("checkpoint-*.safetensors") if _CHECKPOINT.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.stem.split("-")[1]))
