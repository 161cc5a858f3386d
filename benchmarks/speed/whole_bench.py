"""Whole benches as commands: one engine against another, in turns, in fresh folders, with nothing left out.

Measured is the wall time of the command, start-up included. Beside it stands the time from the moment the command has
made its folder: without the imports and the reading of the data. And beside both stands the processor time of the
command and its processes, which says something on a busy machine as well.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.interleaved import Timings, interleaved
from benchmarks.speed.case import Check, Figure, Options, Outcome

PARALLEL_LOCAL = ("--engine", "local", "--parallel", "2")
BATCHED = ("--engine", "batched")

#: Method, held-out domain and seed of a run.
Run = tuple[str, str, int]


@dataclass
class Command:
    """A bench command that can be made several times; the seconds are those of each time."""

    arguments: Sequence[str]
    without_start: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    models: list[Mapping[Run, str]] = field(default_factory=list)

    def make(self) -> None:
        """Make the bench in a folder of its own."""
        with tempfile.TemporaryDirectory() as name:
            out, rows = Path(name) / "bench", Path(name) / "rows.json"
            spent = _processor_seconds()
            command = [sys.executable, "-m", "farfield", "bench", *self.arguments]
            process = subprocess.Popen(
                [*command, "--out", str(out), "--json", str(rows), "--quiet"],
                env=os.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                made = _when_there(out, process)
                _, said = process.communicate()
            finally:
                process.terminate()  # of a command that has ended, nothing; one that was interrupted ends with us
            self.without_start.append(time.perf_counter() - made)
            self.processor.append(_processor_seconds() - spent)
            if process.returncode:
                raise RuntimeError(f"farfield bench {' '.join(self.arguments)}: {said.strip()[-2000:]}")
            self.models.append(
                {
                    (r["algorithm"], str(r["held_out"]), r["seed"]): r["model_sha256"]
                    for r in json.loads(rows.read_text())
                }
            )

    @property
    def typed(self) -> str:
        return " ".join(["farfield bench", *self.arguments])


def _processor_seconds() -> float:
    """Return what the processes that this one has waited for have used, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _when_there(folder: Path, process: subprocess.Popen[str]) -> float:
    """Wait until a folder is there, and return when that was."""
    while not folder.exists() and process.poll() is None:
        time.sleep(0.02)
    return time.perf_counter()


def in_turns(commands: Mapping[str, Command], turns: int) -> tuple[Timings, Timings]:
    """Make the benches in turns; return their times with and without start-up. The first turn counts as well."""
    timings = interleaved(
        {name: lambda _, command=command: command.make for name, command in commands.items()}, turns, warm_up=0
    )
    return timings, Timings({name: command.without_start for name, command in commands.items()})


def batched_against_local(
    arguments: Sequence[str], short: Sequence[str], options: Options, *, runs: int, turns: int, goal: float
) -> Outcome:
    """Measure how many times as fast a bench is on the batched engine as on `local` with two processes.

    `short` are arguments that make the bench small; `runs` is how many it has otherwise.
    """
    arguments = [*arguments, *(short if options.short else ())]
    local, batched = Command([*arguments, *PARALLEL_LOCAL]), Command([*arguments, *BATCHED])
    timings, without = in_turns({"local": local, "batched": batched}, options.turns(turns, short=1))
    processor = Timings({"local": local.processor, "batched": batched.processor})
    figures = (
        Figure.of("speed of batched against local, two processes", timings.ratio("local", "batched"), goal, "at least"),
        Figure.of("the same without start-up", without.ratio("local", "batched")),
        Figure.of("the same in processor time", processor.ratio("local", "batched")),
    )
    seconds = {
        **timings.medians(),
        **{f"{name}, without start-up": value for name, value in without.medians().items()},
        **{f"{name}, processor time": value for name, value in processor.medians().items()},
    }
    notes = (f"`{batched.typed}` against `{local.typed}`",)
    same = same_models([*local.models, *batched.models], None if options.short else runs)
    return Outcome(figures, (same,), seconds, notes)


def same_models(benches: Sequence[Mapping[Run, str]], runs: int | None = None) -> Check:
    """Check that all benches have the same runs with the same models, by hash, and as many as there should be."""
    first = benches[0]
    same = sum(all(bench.get(run) == sha for bench in benches) for run, sha in first.items())
    expected = max(len(bench) for bench in benches) if runs is None else runs
    return Check(f"model_sha256 is the same in {same} of {expected} runs", same == expected > 0)
