"""How long `import farfield` and `farfield --help` take, beside an empty Python and beside `import torch`.

    python benchmarks/startup.py
    python benchmarks/startup.py --turns 21 --json startup.json

Each figure is the median over fresh interpreters, from start to exit. The programs take turns, so that a machine that
is busy for a while slows all of them. A turn before the first is not counted: it brings the files into memory. Goal
for importing the package and for the help: 0.5 seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOAL = 0.5
EMPTY, TORCH = "python -c pass", "import torch"
#: What is timed, as the arguments of Python.
PROGRAMS = {
    EMPTY: ["-c", "pass"],
    TORCH: ["-c", "import torch"],
    "import farfield": ["-c", "import farfield"],
    "farfield --help": ["-m", "farfield", "--help"],
    "farfield --version": ["-m", "farfield", "--version"],
    "farfield server --help": ["-m", "farfield", "server", "--help"],
    "import farfield.algorithms": ["-c", "import farfield.algorithms"],
    "farfield bench --help": ["-m", "farfield", "bench", "--help"],
    "farfield list tasks": ["-m", "farfield", "list", "tasks"],
}
#: Those that the goal is for.
WITH_GOAL = ("import farfield", "farfield --help")


def measure(turns: int) -> dict[str, float]:
    """Return the median seconds of each program."""
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for turn in range(turns + 1):
        for name, arguments in PROGRAMS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = measure(arguments.turns)
    for name, seconds in results.items():
        verdict = ("goal met" if seconds <= GOAL else "goal missed") + f": at most {GOAL} s"
        print(
            f"{name:26s} {seconds:6.3f} s, {seconds / results[EMPTY]:6.1f} × {EMPTY}, "
            f"{seconds / results[TORCH]:5.2f} × {TORCH}" + (f" ({verdict})" if name in WITH_GOAL else "")
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
