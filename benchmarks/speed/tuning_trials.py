"""Many trials of two methods: 1,008 runs on the batched engine against one default bench on it."""

from __future__ import annotations

from itertools import product

from benchmarks.speed import default_bench
from benchmarks.speed.case import Case, Check, Figure, Options, Outcome
from benchmarks.speed.whole_bench import BATCHED, Command, in_turns

TRIALS = 28
LEARNING_RATES, GAMMAS = 7, 4


def variants(trials: int = TRIALS) -> list[str]:
    """Return as many settings of FedAvg (step sizes) as of FedIIR (step sizes and penalties)."""
    fedavg = [f"fedavg:lr={10 ** (-2.5 + 2 * n / (TRIALS - 1)):.4g}" for n in range(TRIALS)]
    rates = [f"{10 ** (-2.5 + 2 * n / (LEARNING_RATES - 1)):.4g}" for n in range(LEARNING_RATES)]
    gammas = [f"{10 ** (-3 + n):.4g}" for n in range(GAMMAS)]
    fediir = [f"fediir:lr={rate}:gamma={gamma}" for rate, gamma in product(rates, gammas)]
    return [*fedavg[:trials], *fediir[:trials]]


def run(options: Options) -> Outcome:
    short = default_bench.SHORT if options.short else ()
    chosen = variants(2 if options.short else TRIALS)
    trials = Command([*default_bench.ARGUMENTS, "--algorithms", ",".join(chosen), *short, *BATCHED])
    one = Command([*default_bench.ARGUMENTS, *short, *BATCHED])
    timings, without = in_turns({"trials": trials, "default bench": one}, options.turns(2, short=1))
    figures = (
        Figure.of("trials / default bench, both batched", timings.ratio("trials", "default bench"), 10.0),
        Figure.of("the same without start-up", without.ratio("trials", "default bench")),
    )
    runs = len(trials.models[0])
    expected = len(chosen) * (2 if options.short else 18)
    return Outcome(figures, (Check(f"{runs:,} runs were made", runs == expected),), timings.medians())


CASE = Case("tuning-trials", "28 trials × 6 held-out domains × 3 seeds of FedAvg and FedIIR, 1,008 runs", run)
