"""A sweep as it goes: one bar for all of it, and a line for each run under way."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from farfield.bench.plan import Job
from farfield.bench.rounds import Progress as RunProgress


class SweepDisplay:
    """Live progress on a terminal; a line a finished run elsewhere (a log file, CI). Use it as a context manager."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._live = console.is_terminal and not quiet
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        self._total: TaskID | None = None
        self._runs: dict[Job, TaskID] = {}
        self._done = self._jobs = 0

    def __enter__(self) -> SweepDisplay:
        if self._live:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bars.stop()

    def begin(self, total: int, done: int) -> None:
        self._jobs, self._done = total, done
        if done and not self._quiet:
            self._console.print(f"{done} of {total} runs are there already; {total - done} to go")
        self._total = self._bars.add_task("[bold]all runs[/]", total=total, completed=done, figures="")

    def progress(self, progress: RunProgress) -> None:
        if not self._live:
            return
        if progress.job not in self._runs:
            self._runs[progress.job] = self._bars.add_task(
                escape(_short(progress.job)), total=progress.rounds, figures=""
            )
        loss = "" if progress.loss is None else f"loss {progress.loss:.3f}"
        validation = "" if progress.validation is None else f"val. {progress.validation:.3f}"
        self._bars.update(self._runs[progress.job], completed=progress.round, figures=f"{loss} {validation}")
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
            self._console.print(f"[red]failed[/] {escape(f'{job}: {error}')}", highlight=False)
        elif not self._live and not self._quiet:
            self._console.print(f"{self._done}/{self._jobs} {job}", highlight=False, markup=False)


def _short(job: Job) -> str:
    """A run in few characters: a terminal line has to hold the figures as well."""
    inner = f"+{job.inner}" if job.inner else ""
    return f"{job.algorithm} · {job.held_out}{inner} · seed {job.seed}"
