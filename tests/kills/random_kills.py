"""Kill a bench at random moments, resume it, and compare it with one that was left alone.

The bench runs in a fork of this process, which has everything imported: a start costs milliseconds, so that hundreds of
kills fit into minutes. What is killed is a real process with real files.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import farfield as ff
from tests.deployment.network import arrays, as_task

#: One line of the records of a run: (run, round) and what was written for it.
Rows = dict[tuple[str, int], dict[str, Any]]
ALGORITHMS = ("fedavg", "scaffold", "fediir")
DOMAINS = ("amber", "birch", "cedar", "dune")
ROUNDS = 60
#: Share of the kills that hit a bench before its first round, and of those that hit a worker first.
AT_THE_START, OF_WORKERS = 0.15, 0.5
#: The longest time between two kills, as a share of the time that a whole bench takes.
LONGEST_SHARE = 0.15


@dataclass
class Killed:
    """What came of a number of kills."""

    kills: int = 0
    #: Kills that hit a worker and left the bench itself alone.
    of_workers: int = 0
    whole_benches: int = 0
    rows_seen: int = 0
    problems: list[str] = field(default_factory=list)


def run_bench(out: Path, workers: int) -> None:
    """Start the bench in a folder, or resume what is there."""
    ff.bench(
        as_task(arrays(DOMAINS)),
        list(ALGORITHMS),
        held_out=["dune"],
        seeds=1,
        rounds=ROUNDS,
        workers=workers,
        parallel=1,
        checkpoint_every=3,
        evaluate_every=1,
        out=out,
        resume=(out / "bench.toml").exists(),
        tell=lambda _: None,
    )


def in_a_fork(work: Callable[[], None]) -> int:
    """Start the work in a process group of its own and return its process id; exit code 0 means that it was done."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)


def recorded(out: Path) -> Rows:
    """Return every whole row of every run in the folder."""
    found: Rows = {}
    for path in out.glob("runs/*/*/*/rounds.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                row = json.loads(line)
                found[str(path.parent.relative_to(out)), row["round"]] = row
    return found


def hashes(out: Path) -> dict[str, tuple[str, int]]:
    """Return the hash of the last model and the number of local steps of every run."""
    results = {str(p.parent.relative_to(out)): json.loads(p.read_text()) for p in out.glob("runs/*/*/*/result.json")}
    return {run: (result["model_sha256"], result["local_steps"]) for run, result in results.items()}


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def kill_at_random(folder: Path, kills: int, workers: int, seed: int) -> Killed:
    """Kill benches `kills` times in all. Each is resumed until it is finished, and compared with the whole one."""
    chance, done = random.Random(seed), Killed()
    whole = folder / "whole"
    began = time.monotonic()
    assert os.waitpid(in_a_fork(lambda: run_bench(whole, workers)), 0)[1] == 0
    lasts = time.monotonic() - began
    rows, models = recorded(whole), hashes(whole)
    while done.kills < kills:
        out = folder / f"killed-{done.whole_benches}"
        seen: Rows = {}
        while True:
            pid = in_a_fork(lambda: run_bench(out, workers))  # noqa: B023, the fork runs at once
            left_alone = done.kills >= kills
            ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if left_alone else None
            if not left_alone:
                at_the_start = chance.random() < AT_THE_START
                ended = _let_run(pid, out, chance.uniform(0.0, LONGEST_SHARE) * lasts, at_the_start)
                ended = _kill(pid, chance, done) if ended is None else ended
            seen |= {key: row for key, row in recorded(out).items() if key not in seen}
            if ended is not None:
                if ended:
                    done.problems.append(f"a resumed bench ended with code {ended}")
                break
        done.whole_benches += 1
        done.rows_seen += len(seen)
        final = recorded(out)
        done.problems += [f"row {key} was lost" for key in seen if key not in final]
        done.problems += [f"row {key} has changed" for key, row in seen.items() if key in final and final[key] != row]
        done.problems += [f"row {key} differs from the whole bench" for key in rows if final.get(key) != rows[key]]
        if hashes(out) != models:
            done.problems.append(f"the models of '{out.name}' are not those of the whole bench")
    return done


def _let_run(pid: int, out: Path, seconds: float, at_the_start: bool) -> int | None:
    """Wait for a round to be recorded, unless the start is to be hit, and then `seconds`. Return the code of an end."""
    before, until = _written(out), time.monotonic() + seconds
    working = at_the_start
    while not working or time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if not working and _written(out) != before:
            working, until = True, time.monotonic() + seconds
        time.sleep(0.002)
    return None


def _written(out: Path) -> int:
    """Return the number of bytes of all rounds that are recorded, which a round changes."""
    return sum(path.stat().st_size for path in out.glob("runs/*/*/*/rounds.jsonl"))


def _kill(pid: int, chance: random.Random, done: Killed) -> int | None:
    """Kill the bench, or first one of its workers. Return the exit code if it ended by itself."""
    workers = children(pid)
    if workers and chance.random() < OF_WORKERS:
        os.kill(chance.choice(workers), signal.SIGKILL)
        done.kills += 1
        done.of_workers += 1
        time.sleep(chance.uniform(0.0, 0.3))
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        return os.waitstatus_to_exitcode(status)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    done.kills += 1
    return None
