"""Cached features: six methods on PACS, four domains, five seeds."""

from __future__ import annotations

from benchmarks.speed.case import Case, Options, Outcome, data_folder
from benchmarks.speed.whole_bench import batched_against_local

FEATURES = "pacs_feat_efficientnet_lite0.npz"
ARGUMENTS = ("pacs", "--features", f"cached:{FEATURES}", "--seeds", "5", "--no-references")
SHORT = ("--rounds", "1", "--seeds", "1", "--held-out", "photo", "--rows", "400")


def run(options: Options) -> Outcome:
    data_folder(FEATURES)
    return batched_against_local(ARGUMENTS, SHORT, options, runs=120, turns=1, goal=5.0)


CASE = Case("pacs-features", "PACS on cached features, six methods, four domains, five seeds", run)
