"""A sweep as it goes: one bar for all of it, and a line for each run under way."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from farfield.bench.job import Progress as RunProgress
from farfield.bench.plan import Job


class SweepDisplay:
    """Live progress on a terminal; a line a finished run elsewhere (a log file, CI). Use it as a context manager."""

    def __init__(self, console: Console, rounds: int, quiet: bool = False) -> None:
        self._console, self._rounds, self._quiet = console, rounds, quiet
        self._live = console.is_terminal and not quiet
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
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
        self._total = self._bars.add_task(
            f"[bold]{total} runs[/]", total=total * self._rounds, completed=done * self._rounds, figures="rounds"
        )

    def progress(self, progress: RunProgress) -> None:
        if not self._live:
            return
        if progress.job not in self._runs:
            start = progress.round - 1
            self._runs[progress.job] = self._bars.add_task(
                str(progress.job), total=progress.rounds, completed=start, figures=""
            )
            if self._total is not None and start:
                self._bars.advance(self._total, start)
        loss = "" if progress.loss is None else f"loss {progress.loss:.3f}"
        validation = "" if progress.validation is None else f"source val. {progress.validation:.3f}"
        self._bars.update(self._runs[progress.job], completed=progress.round, figures=f"{loss} {validation}")
        if self._total is not None:
            self._bars.advance(self._total)

    def finished(self, job: Job, error: str | None) -> None:
        self._done += 1
        if job in self._runs:
            self._bars.remove_task(self._runs.pop(job))
        if error is not None:
            self._console.print(f"[red]failed[/] {job}: {error}", highlight=False)
        elif not self._live and not self._quiet:
            self._console.print(f"{self._done}/{self._jobs} {job}", highlight=False)
