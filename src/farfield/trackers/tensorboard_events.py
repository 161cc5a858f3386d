"""TensorBoard: one log folder per run, with one event per round."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farfield.records.bench_folder import TRACKERS
from farfield.runs.callbacks import Callback
from farfield.runs.job import Job, folder_name
from farfield.runs.plan import Plan
from farfield.trackers.figures import (
    bench_identity,
    cost_figures,
    held_out_figures,
    held_out_prefix,
    round_figures,
    run_name,
    run_of,
    run_settings,
)
from farfield.trackers.packages import need

if TYPE_CHECKING:
    from farfield.runs.result import BenchResult


class TensorBoard(Callback):
    """Writes event files to `folder`: by default `trackers/tensorboard` in the bench's folder.

    A folder that is given can be shared by several benches: each has a folder of its own in it. Inner runs of
    leave-one-domain-out are left out.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        need("tensorboard")
        self._given = None if folder is None else Path(folder)
        self._runs: dict[Job, _Run] = {}

    def on_bench_start(self, plan: Plan, folder: Path) -> None:
        self._plan, self._runs = plan, {}  # a sweep tells of one bench after the other
        identity = bench_identity(folder)
        if self._given is None:
            self.folder = folder / TRACKERS / "tensorboard"
        else:
            self.folder = self._given / f"{folder_name(plan.task)}-{identity}"

    def on_round(self, job: Job, row: Mapping[str, Any]) -> None:
        if job.inner is None:
            self._run(job).write(int(row["round"]), round_figures(row))

    def on_run_end(self, job: Job, result: Mapping[str, Any]) -> None:
        if job.inner is None:
            self._run(job).write(int(result.get("rounds", 0)), cost_figures(result))
            self._run(job).close()

    def on_bench_end(self, result: BenchResult) -> None:
        for row in result.rows:
            run = self._run(run_of(row))
            for rule, round, figures in held_out_figures(row):
                run.write(round, {held_out_prefix(row, rule) + name: value for name, value in figures.items()})
            run.close()

    def close(self) -> None:
        for run in self._runs.values():
            run.close()

    def _run(self, job: Job) -> _Run:
        if job not in self._runs:
            name = run_name(job)
            self._runs[job] = _Run(self.folder / name, name, run_settings(self._plan, job))
        return self._runs[job]


class _Run:
    """The event files of one run. Figures that are in them already are not written again."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self._folder, self._name, self._settings = folder, name, settings
        self._writer: Any = None
        #: Step and tag of everything that the files hold. Of a run that was killed they say what arrived.
        self._written = _written(folder)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write figures of one step as one event, so that a kill loses all of them or none."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        new = {name: value for name, value in figures.items() if (step, name) not in self._written}
        if not new:
            return
        self._open()
        self._add(step, Summary(value=[Summary.Value(tag=name, simple_value=new[name]) for name in sorted(new)]))
        self._written |= {(step, name) for name in new}
        self._writer.flush()

    def _open(self) -> None:
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(self._folder))
        if not self._written:
            self._add(0, summary_v2.hparams_pb(dict(self._settings), trial_id=self._name))

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _written(folder: Path) -> set[tuple[int, str]]:
    """Return the steps and tags in a folder's event files."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return {
        (event.step, value.tag)
        for path in sorted(folder.glob("*tfevents*"))
        for event in LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
    }
