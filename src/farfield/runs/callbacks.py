"""Callbacks: whoever wants to be told of a bench while it runs, such as an experiment tracker.

Runs are made in processes of their own, and callbacks are called in the process that started them: a tracker has one
writer. What a callback is told comes from the records, so that a bench that is resumed tells the rounds that were made
before, too, each round once. Held-out figures are sealed until the bench ends and reach `on_bench_end` alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farfield.errors import UserError
from farfield.records import RunFolder
from farfield.records.follow import RowFollower
from farfield.records.run_files import ROUNDS
from farfield.runs.job import Job
from farfield.runs.plan import Plan
from farfield.runs.rounds import Progress

if TYPE_CHECKING:
    from farfield.runs.processes import Observer
    from farfield.runs.result import BenchResult


class CallbackWarning(UserWarning):
    """A callback has failed and is called no more; the bench goes on."""


class Callback:
    """Override what you need. An exception in a callback does not end the bench: it switches this callback off."""

    def on_bench_start(self, plan: Plan, folder: Path) -> None:
        """Hear the plan before the first round. `folder` is the bench's, or the run's of a training."""

    def on_round(self, job: Job, row: Mapping[str, Any]) -> None:
        """Hear a round's row as `rounds.jsonl` has it: `round`, `loss`, `diagnostics`, and `validation` by domain."""

    def on_run_end(self, job: Job, result: Mapping[str, Any]) -> None:
        """Hear a run's `result.json`: steps, bytes, seconds. Of a run that failed it is `{"error": sentence}`."""

    def on_bench_end(self, result: BenchResult) -> None:
        """Hear the result, with the held-out figures. A training has none and does not call this."""

    def close(self) -> None:
        """Let go of files and connections. Called last, also when the bench fails or is interrupted."""


class Teller:
    """Tells callbacks what the records say. It stands between a sweep and the observer that the sweep would have."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        plan: Plan,
        folder: Path,
        runs: Mapping[Job, Path],
        observer: Observer,
    ) -> None:
        self._callbacks, self._plan, self._folder = list(callbacks), plan, folder
        self._runs, self._observer = runs, observer
        self._followers = {job: RowFollower(path / ROUNDS) for job, path in runs.items()} if callbacks else {}
        #: The last round told of each run: a resumed run repeats the rounds after its checkpoint, to the same bits.
        self._told: dict[Job, int] = {}
        self._ended: set[Job] = set()

    def begin(self, total: int, done: int) -> None:
        self.start()
        self._observer.begin(total, done)

    def start(self) -> None:
        """Tell the plan, and the rounds and results that are recorded already."""
        self._tell("on_bench_start", self._plan, self._folder)
        for job in self._followers:
            self._tell_rounds(job)
            result = RunFolder(self._runs[job]).result
            if result is not None and result["rounds"] >= self._plan.rounds_of[job.algorithm]:
                self.run_ended(job, None)

    def progress(self, progress: Progress) -> None:
        if progress.phase is None:
            self._tell_rounds(progress.job)
        self._observer.progress(progress)

    def finished(self, job: Job, error: str | None) -> None:
        self.run_ended(job, error)
        self._observer.finished(job, error)

    def run_ended(self, job: Job, error: str | None) -> None:
        """Tell a run's last rounds and its result, or why there is none."""
        if self._callbacks and job not in self._ended:
            self._ended.add(job)
            self._tell_rounds(job)
            result = RunFolder(self._runs[job]).result if error is None else {"error": error}
            self._tell("on_run_end", job, result or {"error": "the run has left no result"})

    def end(self, result: BenchResult) -> None:
        self._tell("on_bench_end", result)

    def close(self) -> None:
        self._tell("close")

    def _tell_rounds(self, job: Job) -> None:
        follower = self._followers.get(job)
        if follower is None or not self._callbacks:
            return
        for row in follower.new_rows():
            if row.get("round", 0) > self._told.get(job, 0):
                self._told[job] = row["round"]
                self._tell("on_round", job, row)

    def _tell(self, hook: str, *arguments: Any) -> None:
        for callback in list(self._callbacks):
            call: Callable[..., None] = getattr(callback, hook)
            try:
                call(*arguments)
            except Exception as error:  # whatever a tracker has, it must not cost the runs
                self._callbacks.remove(callback)
                warnings.warn(
                    f"the callback {type(callback).__name__} failed in {hook} and is called no more; the runs go on: "
                    f"{type(error).__name__}: {error}",
                    CallbackWarning,
                    stacklevel=2,
                )
                if hook != "close":
                    _close_quietly(callback)


def _close_quietly(callback: Callback) -> None:
    """Close a callback that has failed: why it failed was said already."""
    try:
        callback.close()
    except Exception:
        return


def check_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks; refuse what is none before any work."""
    found = tuple(callbacks)
    for callback in found:
        if not isinstance(callback, Callback):
            raise UserError(f"callbacks takes objects of farfield.Callback, not {callback!r}; write a subclass of it")
    return found


@contextmanager
def telling(
    callbacks: Sequence[Callback], plan: Plan, folder: Path, runs: Mapping[Job, Path], observer: Observer
) -> Iterator[Teller]:
    """Make a teller, and close its callbacks at the end, however that comes."""
    teller = Teller(callbacks, plan, folder, runs, observer)
    try:
        yield teller
    finally:
        teller.close()
