"""Fuzz everything that Farfield reads: `python -m tests.fuzz.run --inputs N --target T|all --seed S --workers W`.

Each target runs in processes of its own that are watched from here: an input that hangs, that takes too much memory, or
that ends its process is a failure, and so is any error that is no refusal in words. Failing inputs are kept in
`--keep`, with their tracebacks; `--replay FILE` runs one of them again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz.target import TARGETS, Target, memory_folder
from tests.fuzz.worker import FIGURES

#: Seconds without a finished input after which a process is taken to hang, and seconds to open a target.
PATIENCE, OPENING = 180.0, 1200.0
#: A process may hold this many bytes in all.
MOST_MEMORY = 3 << 30


@dataclass
class Outcome:
    """The figures of one target."""

    target: str
    inputs: int = 0
    refused: int = 0
    failures: int = 0
    seconds: float = 0.0
    peak_mb: int = 0
    #: Peak memory above what the process held before the first input.
    grown_mb: int = 0


def fuzz(target: Target, inputs: int, seed: int, engine: str, keep: Path) -> Outcome:
    """Run so many inputs through a target, in as many processes as it takes."""
    outcome, started = Outcome(target.name), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="farfield-fuzz-", dir=memory_folder()))
    figures = folder / "figures"
    with open(figures, "wb") as file:
        file.truncate(FIGURES.size + (1 << 20))
    # The first part is led by coverage, the rest by chance alone, which reaches what coverage does not reward.
    parts = [("guided", inputs // 2), ("random", inputs)] if engine == "both" else [(engine, inputs)]
    for part, until in parts:
        while (done := _read(figures)[0]) < until:
            shutil.rmtree(folder / "work", ignore_errors=True)
            shutil.rmtree(folder / "corpus", ignore_errors=True)
            ended = _watched([target.name, str(until), str(seed + done), part, str(folder)], figures, folder)
            outcome.peak_mb = max(outcome.peak_mb, _read(figures)[3] >> 10)
            outcome.grown_mb = max(outcome.grown_mb, (_read(figures)[3] - _read(figures)[4]) >> 10)
            if ended is not None:
                if _read(figures)[0] == done and not _read(figures)[5]:
                    raise SystemExit(f"{target.name} cannot be opened: {(folder / 'said').read_text()[-3000:]}")
                _blame(figures, folder, ended)
    outcome.inputs, outcome.refused, outcome.failures = _read(figures)[:3]
    outcome.seconds = time.monotonic() - started
    for path in (*folder.glob("*.bin"), *folder.glob("*.txt")):
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, keep / f"{target.name.replace(' ', '-')}-{path.name}")
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _read(figures: Path) -> tuple[int, ...]:
    with open(figures, "rb") as file:
        return tuple(FIGURES.unpack(file.read(FIGURES.size)))


def _watched(arguments: list[str], figures: Path, folder: Path) -> str | None:
    """Run a worker to its end. Returns how it ended before it was done; None if it was done."""
    with open(folder / "said", "wb") as said:
        command = [sys.executable, "-m", "tests.fuzz.worker", *arguments]
        process = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        first = seen = _read(figures)[0]
        since = time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(0.05)
                done = _read(figures)[0]
                if done != seen:
                    seen, since = done, time.monotonic()
                elif time.monotonic() - since > (OPENING if seen == first else PATIENCE):
                    return "no end in sight"
                if _held(process.pid) > MOST_MEMORY:
                    return f"more than {MOST_MEMORY >> 30} GB"
        finally:
            process.kill()
            process.wait()
    return None if process.returncode == 0 else f"the process ended with {process.returncode}"


def _held(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _blame(figures: Path, folder: Path, ended: str) -> None:
    """Count the input that was at work as a failure, and keep it."""
    counted = list(_read(figures))
    data = figures.read_bytes()[FIGURES.size : FIGURES.size + counted[5]]
    counted[0] += 1
    counted[2] += 1
    name = folder / f"ended-{counted[0]}"
    name.with_suffix(".bin").write_bytes(data)
    said = (folder / "said").read_text(errors="replace")[-4000:]
    name.with_suffix(".txt").write_text(f"{ended}\n{said}")
    with open(figures, "r+b") as file:
        file.write(FIGURES.pack(*counted))


def shares(targets: list[Target], inputs: int) -> dict[str, int]:
    """Return how many inputs each target gets: its share, and not fewer than fifty."""
    whole = sum(target.share for target in targets)
    return {target.name: max(50, round(inputs * target.share / whole)) for target in targets}


def replay(name: str, file: Path) -> None:
    """Run one kept input, and let its error come through."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        _, consume = TARGETS[name].open(Path(folder))
        consume(file.read_bytes())


def table(outcomes: list[Outcome]) -> str:
    """Return the figures as a table in Markdown."""
    whole = Outcome(
        "**all**",
        sum(of.inputs for of in outcomes),
        sum(of.refused for of in outcomes),
        sum(of.failures for of in outcomes),
        sum(of.seconds for of in outcomes),
        max(of.peak_mb for of in outcomes),
        max(of.grown_mb for of in outcomes),
    )
    heads = ("target", "inputs", "refused in words", "failures", "seconds", "peak MB", "MB above the start")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for of in (*outcomes, whole):
        figures = f"{of.inputs:,} | {of.refused:,} | {of.failures} | {of.seconds:.0f} | {of.peak_mb} | {of.grown_mb}"
        lines.append(f"| {of.target} | {figures} |")
    return "\n".join(lines)


def main() -> int:
    import tests.fuzz.all_targets  # noqa: F401, registers them

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--target", default="all", help=f"all, or one of: {', '.join(TARGETS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", choices=("both", "guided", "random"), default="both")
    parser.add_argument("--short", action="store_true", help="as many inputs as each target names for it")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    if given.replay is not None:
        replay(given.target, given.replay)
        return 0
    chosen = list(TARGETS.values()) if given.target == "all" else [TARGETS[name] for name in given.target.split(",")]
    many = {of.name: of.short for of in chosen} if given.short else shares(chosen, given.inputs)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(given.workers) as pool:
        made = [pool.submit(fuzz, of, many[of.name], given.seed, given.engine, given.keep) for of in chosen]
        for future in made:
            outcomes.append(future.result())
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    print(table(outcomes))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(of) for of in outcomes], indent=2) + "\n")
    return 1 if any(of.failures for of in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
