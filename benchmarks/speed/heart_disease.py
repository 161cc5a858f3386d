"""A small table: the default methods on heart disease, four hospitals, three seeds."""

from __future__ import annotations

from benchmarks.speed.case import Case, Options, Outcome, data_folder
from benchmarks.speed.whole_bench import batched_against_local

ARGUMENTS = ("heart-disease", "--no-references")
SHORT = ("--rounds", "2", "--seeds", "1", "--held-out", "va")


def run(options: Options) -> Outcome:
    data_folder("heart_disease.csv")
    return batched_against_local(ARGUMENTS, SHORT, options, runs=72, turns=3, goal=5.0)


CASE = Case("heart-disease", "heart-disease with the default methods, 72 runs", run)
