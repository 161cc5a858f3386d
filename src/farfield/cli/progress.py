"""A sweep as it goes: one bar for all of it, and one line per run under way."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from farfield.printable import one_line
from farfield.runs.estimate import duration
from farfield.runs.plan import Job
from farfield.runs.rounds import Progress as RunProgress

#: Where nobody watches a bar (a log file, CI), a run that is still at it says so after this many seconds.
SILENCE = 60.0


class _Elapsed(ProgressColumn):
    """How long a line has been there; it ticks also while a round is long."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        return Text(_clock(task.elapsed or 0.0), style="progress.elapsed")


def bars(console: Console, *, disable: bool = False) -> Progress:
    """Lines that show how far runs are, how long they took and how long they will."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        _Elapsed(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=disable,
    )


def figures(progress: RunProgress) -> str:
    """Inside a round how many clients have answered, and the last known validation and loss.

    In this order, because a narrow terminal cuts the end off.
    """
    parts = [] if progress.phase is None else [escape(f"{progress.phase} {progress.answered}/{progress.asked}")]
    parts += [] if progress.validation is None else [f"val. {progress.validation:.3f}"]
    parts += [] if progress.loss is None else [f"loss {progress.loss:.3f}"]
    return " ".join(parts)


class Heartbeat:
    """For a log: a line about a run that goes on, when there was none for a while."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._last = time.monotonic()

    def spoke(self) -> None:
        self._last = time.monotonic()

    def hear(self, progress: RunProgress) -> None:
        now = time.monotonic()
        if now - self._last < SILENCE:
            return
        self._last = now
        inside = f", {progress.phase}: client {progress.answered} of {progress.asked}" if progress.phase else ""
        self._console.print(
            one_line(
                f"  … {progress.job}: {progress.round} of {progress.rounds} rounds{inside}, {_clock(now - self._began)}"
            ),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


class SweepDisplay:
    """Live progress on a terminal; one line per finished run in a log. Use it as a context manager."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._live = console.is_terminal and not quiet
        self._bars = bars(console)
        self._heartbeat = Heartbeat(console)
        self._total: TaskID | None = None
        self._runs: dict[Job, TaskID] = {}
        self._done = self._jobs = self._there = 0
        self._began = time.monotonic()

    def __enter__(self) -> SweepDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live and self._total is not None:
            self._bars.stop()

    def begin(self, total: int, done: int) -> None:
        self._jobs, self._done, self._there = total, done, done
        self._began = time.monotonic()
        if self._total is not None:  # of the tuning, which comes before the runs
            self._bars.remove_task(self._total)
        if done and not self._quiet:
            self._console.print(f"{done} of {total} runs are there already; {total - done} to go")
        self._total = self._bars.add_task("[bold]all runs[/]", total=total, completed=done, figures="")
        if self._live:
            self._bars.start()

    def progress(self, progress: RunProgress) -> None:
        if not self._live:
            if not self._quiet:
                self._heartbeat.hear(progress)
            return
        if progress.job not in self._runs:
            self._runs[progress.job] = self._bars.add_task(
                escape(one_line(_short(progress.job))), total=progress.rounds, figures=""
            )
        self._bars.update(self._runs[progress.job], completed=progress.round, figures=figures(progress))
        self._show_total()

    def _show_total(self) -> None:
        """Finished runs, and the finished part of those under way: smoother than whole runs, so time left is better."""
        under_way = sum(self._bars.tasks[self._bars.task_ids.index(line)].percentage for line in self._runs.values())
        if self._total is not None:
            self._bars.update(self._total, completed=self._done + under_way / 100)

    def finished(self, job: Job, error: str | None) -> None:
        self._done += 1
        if job in self._runs:
            self._bars.remove_task(self._runs.pop(job))
        self._show_total()
        if error is not None:
            self._console.print(f"[red]failed[/] {escape(one_line(f'{job}: {error}'))}", highlight=False)
        elif not self._live and not self._quiet:
            self._console.print(
                one_line(f"{self._done}/{self._jobs} {job}{self._left()}"), highlight=False, markup=False
            )
            self._heartbeat.spoke()

    def _left(self) -> str:
        """Return the time that the remaining runs will take if they are like the finished ones; empty if short."""
        made, left = self._done - self._there, self._jobs - self._done
        seconds = left * (time.monotonic() - self._began) / made if made else 0.0
        return f", about {duration(seconds)} left" if seconds > SILENCE else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _short(job: Job) -> str:
    """A run in few characters: a terminal line has to hold the figures as well."""
    inner = f"+{job.inner}" if job.inner else ""
    trial = "" if job.trial is None else f" · trial {job.trial}"
    return f"{job.algorithm}{trial} · {job.held_out or 'all'}{inner} · seed {job.seed}"
