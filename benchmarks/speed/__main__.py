"""Measure the cases of the suite and write their results.

    python -m benchmarks.speed [--cases A,heart-disease] [--repetitions N] [--json FILE] [--short] [--list]

Results are written after each case. A case that fails is reported at the end, and the others are measured all the same.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from benchmarks.speed.case import Case, Options, Outcome, Skipped
from benchmarks.speed.cases import CASES, chosen
from benchmarks.speed.results_file import RESULTS, measured, not_measured, read_results, write_entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="all", help="names or letters with commas; all by default")
    parser.add_argument("--repetitions", type=int, help="turns of every case; each has its own number by default")
    parser.add_argument("--json", type=Path, default=RESULTS, help="benchmarks/results.json by default")
    parser.add_argument("--short", action="store_true", help="as small as possible, to see that the cases run")
    parser.add_argument("--list", action="store_true", help="print the cases and measure nothing")
    arguments = parser.parse_args()
    if arguments.repetitions is not None and arguments.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, not {arguments.repetitions}")
    try:
        cases = chosen(arguments.cases)
    except ValueError as error:
        parser.error(str(error))
    if arguments.list:
        for case in CASES:
            print(f"{case.letter or '-':2s}{case.name:20s}{case.title}")
        return
    options = Options(arguments.repetitions, arguments.short)
    failed = [case.name for case in cases if not measure(case, options, arguments.json)]
    if failed:
        sys.exit(f"failed, or measured with a check that does not hold: {', '.join(failed)}")


def measure(case: Case, options: Options, path: Path) -> bool:
    """Measure one case, write and print what came of it, and return whether it can be relied on."""
    print(f"{case.name}: {case.title}", flush=True)
    started = time.perf_counter()
    try:
        outcome = case.run(options)
    except Skipped as why:
        # What was measured where the case could be stays.
        if read_results(path).get(case.name, {}).get("status") != "measured":
            write_entry(path, case, not_measured(case, options, "skipped", str(why)))
        print(f"  skipped: {why}", flush=True)
        return True
    except Exception as error:  # one failing case must not cost the others
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        write_entry(path, case, not_measured(case, options, "failed", reason))
        return False
    write_entry(path, case, measured(case, options, outcome, (time.perf_counter() - started) / 60))
    print_outcome(outcome)
    return all(check.holds for check in outcome.checks)


def print_outcome(outcome: Outcome) -> None:
    for figure in outcome.figures:
        verdict = (
            "" if figure.goal is None else f" ({'met' if figure.met else 'missed'}: {figure.sense} {figure.goal:g})"
        )
        print(f"  {figure.name}: {figure.value:.3f} {figure.unit} [{figure.low:.3f} to {figure.high:.3f}]{verdict}")
    for check in outcome.checks:
        print(f"  {'checked' if check.holds else 'DOES NOT HOLD'}: {check.sentence}")
    for note in outcome.notes:
        print(f"  note: {note}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
