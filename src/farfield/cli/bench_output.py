"""The output of a bench at its end, also when it is interrupted."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.markup import escape

from farfield.cli.answer import print_answer
from farfield.cli.console import messages, output
from farfield.errors import UserError
from farfield.printable import one_line
from farfield.records.bench_folder import BENCH
from farfield.report.collect import Sweep, collect
from farfield.runs.result import BenchResult

#: So many runs of one method that fail for the same reason are still listed one by one.
LISTED_FAILURES = 3


def print_result(result: BenchResult, page: Path, seconds: float) -> None:
    """Print the table, how much of the bench it is made of, and what failed."""
    output.print(result.results().render(output.width))
    there = result.sweep.completeness
    print_answer(result)
    plain(f"{there.done} runs in {seconds:.0f} s; report: {page}")
    for line in failure_lines(result.sweep):
        messages.print(f"[red]failed[/] {escape(one_line(line))}", highlight=False, soft_wrap=True)


def print_interrupted(folder: Path) -> None:
    """Print what an interrupted bench has so far, write its page, and say how to go on."""
    if (folder / BENCH).exists():
        try:
            result = BenchResult(collect(folder, "interrupted"))
            page = result.report()
        except UserError as error:  # what was done is on the disk, whatever is wrong with showing it
            messages.print(f"[red]no provisional result:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        else:
            messages.print()
            if result.rows:
                output.print(result.results().render(output.width))
            print_answer(result)
            plain(f"report: {page}")
    messages.print(
        f"\ninterrupted; what was done is in {folder}. To go on:\n  {_resume_command(folder)}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def failure_lines(sweep: Sweep) -> list[str]:
    """Return one line per failed run, or one for all runs of a method that failed for the same reason."""
    groups: dict[tuple[str, str], dict[tuple[str, int], None]] = {}
    for of in sweep.failures:
        run = (of.get("fold") or of["held_out"], of["seed"])
        groups.setdefault((of["algorithm"], str(of["error"])), {})[run] = None
    lines = []
    for (algorithm, error), runs in groups.items():
        if len(runs) > LISTED_FAILURES:
            lines.append(f"{algorithm}, {len(runs)} runs: {error}")
        else:
            lines += [f"{algorithm}, {held_out} held out, seed {seed}: {error}" for held_out, seed in runs]
    return lines


def plain(text: str) -> None:
    """Print a line of the result, unchanged but for what a terminal would obey."""
    output.print(one_line(text), highlight=False, soft_wrap=True, markup=False)


def _resume_command(folder: Path) -> str:
    """The command that was typed, so changed that it resumes."""
    arguments = [a for a in sys.argv[1:] if a not in ("--resume", "--fresh")]
    named = any(a == "--out" or a.startswith("--out=") for a in arguments)
    return shlex.join(["farfield", *arguments, *([] if named else ["--out", str(folder)]), "--resume"])
