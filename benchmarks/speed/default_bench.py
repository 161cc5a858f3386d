"""The default bench: FedAvg and the five papers' methods on rotated digits, six angles, three seeds."""

from __future__ import annotations

from benchmarks.speed.case import Case, Options, Outcome
from benchmarks.speed.whole_bench import batched_against_local

#: The references would be 54 further runs beside the 108 of the methods.
ARGUMENTS = ("rotated-digits", "--no-references")
SHORT = ("--rounds", "2", "--seeds", "1", "--held-out", "0,15")


def run(options: Options) -> Outcome:
    return batched_against_local(ARGUMENTS, SHORT, options, runs=108, turns=3, goal=6.0)


CASE = Case("default-bench", "the default bench, 108 runs on rotated digits", run)
