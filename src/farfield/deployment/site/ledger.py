"""The ledger of a site: every question that it has answered, on its own disk.

    ledger = Ledger(folder)
    with ledger.open_book() as book:                      # one process at a time
        book.begin_run(run, assignment_hash, by_file=1)   # Refused: a run too many, or a run whose content changed
        book.enter("train", run, 3, content_hash)         # Refused: another question for this round and phase

A server can name runs as it likes, so the number of runs is limited by the ledger and not by their names. A question is
written down, and is on the disk, before it is answered. The same question again, after a lost reply or by a server that
was resumed, is answered again: what a phase makes depends on nothing but its question and the site's rows, so the
answer is the same. Lines are only ever added to `ledger.jsonl`; one that a kill has cut, of a question that was not
answered, is removed. A ledger with a damaged line answers nothing more, because forgetting a question would allow a
second one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from farfield.federation.refusal import Refused
from farfield.records.atomic import append_row, read_rows, sync, whole_rows
from farfield.records.checksums import LineReader

FILE = "ledger.jsonl"


def fingerprint(*parts: Any) -> str:
    """Return the sha256 of texts, numbers and named tensors, in order; names in a mapping count in their own order."""
    digest = hashlib.sha256()
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def _add(digest: Any, part: Any) -> None:
    if isinstance(part, Mapping):
        digest.update(f"mapping {len(part)};".encode())
        for name in sorted(part):
            digest.update(f"{len(str(name))}:{name}=".encode())
            _add(digest, part[name])
    elif isinstance(part, Tensor):
        digest.update(f"{part.dtype}{tuple(part.shape)};".encode())
        digest.update(part.detach().contiguous().cpu().numpy().tobytes())
    else:
        text = repr(part)
        digest.update(f"{type(part).__name__} {len(text)}:{text};".encode())


def _remove_cut_line(descriptor: int) -> None:
    """Remove a last line that a kill or a full disk has cut. Its question was not answered: that needs the whole line.

    The next entry would else give it an end, and it would count as damage from then on.
    """
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole < len(content) and LineReader().row(content[whole:]) is None:
        os.ftruncate(descriptor, whole)


class Ledger:
    """The file of one site in one federation."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    @contextmanager
    def open_book(self) -> Iterator[Book]:
        """Lend the ledger to one process at a time; what it enters is on the disk when this ends."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _remove_cut_line(descriptor)
            rows = whole_rows(self._path)
            if rows is None:
                raise Refused("ledger")
            book = Book(self._path, rows)
            yield book
            if book.changed:
                sync(self._path)
        finally:
            os.close(descriptor)

    def allow_another_run(self) -> None:
        """Write down that the operator allows one more run."""
        with self.open_book() as book:
            book.add({"kind": "allowed"})

    @property
    def runs(self) -> int:
        """How many runs the site has taken part in."""
        return sum(row.get("kind") == "run" for row in read_rows(self._path))


class Book:
    """The ledger while one process has it."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        self._path, self._rows, self.changed = path, rows, False

    def add(self, row: Mapping[str, Any]) -> None:
        entry = {"time": time.time(), **row}
        append_row(self._path, entry)
        self._rows.append(entry)
        self.changed = True

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self._rows if row.get("kind") == kind]

    def allowed_runs(self, by_file: int) -> int:
        """Return the runs that the site file allows, and those that the operator allowed since."""
        return by_file + len(self.of("allowed"))

    def check_run(self, run: str, content: str, by_file: int) -> bool:
        """Refuse a run too many, and another content of a run that is known; return whether the run is known."""
        for row in self.of("run"):
            if row["run"] == run:
                if row["content"] != content:
                    raise Refused("run-changed")
                return True
        allowed = self.allowed_runs(by_file)
        if len(self.of("run")) >= allowed:
            raise Refused("runs", allowed=allowed)
        return False

    def begin_run(self, run: str, content: str, by_file: int) -> None:
        """Enter a run at its first question."""
        if not self.check_run(run, content, by_file):
            self.add({"kind": "run", "run": run, "content": content})

    def has(self, phase: str, run: str, round: int, content: str) -> bool:
        """Return whether exactly this question was entered before."""
        return self._asked(phase, run, round) == content

    def check_phase(self, phase: str, run: str, round: int, content: str) -> None:
        """Refuse a second, different question for a round and phase."""
        if self._asked(phase, run, round) not in (None, content):
            raise Refused("answered-otherwise", phase=phase, round=round)

    def enter(self, phase: str, run: str, round: int, content: str) -> None:
        """Enter the question of a phase, before it is answered."""
        self.check_phase(phase, run, round, content)
        self.add({"kind": "phase", "run": run, "round": round, "phase": phase, "content": content})

    def _asked(self, phase: str, run: str, round: int) -> str | None:
        for row in self.of("phase"):
            if (row["run"], row["round"], row["phase"]) == (run, round, phase):
                return str(row["content"])
        return None

    def enter_question(self, exchange: str, content: str, most: int) -> bool:
        """Enter a question outside the rounds. Refuses more than `most` different ones; returns whether it is known."""
        asked = [row["content"] for row in self.of("question") if row["exchange"] == exchange]
        if content in asked:
            return True
        if len(asked) >= most:
            raise Refused("questions", exchange=exchange, allowed=most)
        self.add({"kind": "question", "exchange": exchange, "content": content})
        return False

    def note_answer(self, exchange: str, content: str, answer: str) -> None:
        """Enter the hash of what was answered."""
        self.add({"kind": "answer", "exchange": exchange, "content": content, "answer": answer})
