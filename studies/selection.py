"""Which rule should choose the round: the figures behind the default, over several tasks and many seeds.

    python -m studies.selection                                  # heart-disease, 10 seeds; about a minute on two cores
    python -m studies.selection --task tcga-brca --seeds 20

For each way to choose: the mean over held-out domains of the leading metric on the held-out domain, as a mean and a
standard deviation over seeds; the accuracy beside it; and the median of the chosen rounds. `loss` and `balanced loss`
are the lowest mean validation loss over the training domains, by rows and by classes; `metric` is the best mean of the
leading metric, of equals the one with the lower loss; `accuracy` is the papers' rule, of equals the earliest. `ties` is
the share of runs in which several rounds have the best validation accuracy.
"""

from __future__ import annotations

import argparse
import math
from statistics import fmean, median, stdev

import farfield as ff
from farfield.protocol.selection import SourceRow, TargetRow, choose, choose_oracle
from farfield.report.collect import Curve

#: Each way to choose, as a rule and the metric that leads it; None is the bench's own.
WAYS: dict[str, tuple[str, str | None]] = {
    "loss": ("source-loss", "loss"),
    "balanced loss": ("source-loss", "balanced_loss"),
    "metric": ("source-validation", None),
    "accuracy": ("source-accuracy", "accuracy"),
    "last": ("last", None),
    "oracle": ("oracle", None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="heart-disease", help="a task whose data is here")
    parser.add_argument("--algorithms", default="fedavg", help="methods, with commas")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=None, help="the task's own number by default")
    given = parser.parse_args()
    methods = given.algorithms.split(",")
    result = ff.bench(
        given.task, methods, seeds=given.seeds, rounds=given.rounds, evaluate_every=1, diagnose=False, references=()
    )
    curves = [curve for curve in result.sweep.curves if curve.algorithm in methods]
    print(f"{given.task}: {result.metric} leads ({result.sweep.plan['metric_reason']}); {given.seeds} seeds")
    print(f"ties in {100 * fmean(_has_tie(curve) for curve in curves):.0f} % of {len(curves)} runs")
    print(f"{'method':18}{'chosen by':16}{result.metric:>22}{'accuracy':>18}{'median round':>14}")
    for algorithm in methods:
        own = [curve for curve in curves if curve.algorithm == algorithm]
        for way in WAYS:
            chosen = {(c.held_out, c.seed): _choose(c, way, result.metric) for c in own}
            leading, accuracy = (
                _by_seed([(c.seed, dict(c.target)[chosen[c.held_out, c.seed]].get(name)) for c in own])
                for name in (result.metric, "accuracy")
            )
            rounds = median(chosen.values())
            print(f"{algorithm:18}{way:16}{_shown(leading):>22}{_shown(accuracy):>18}{rounds:>14g}", flush=True)


def _choose(curve: Curve, way: str, leading: str) -> int:
    rule, metric = WAYS[way]
    if rule == "oracle":
        return choose_oracle(leading, [TargetRow(r, metrics) for r, metrics in curve.target])
    rows = [SourceRow(row["round"], row["validation"]) for row in curve.rounds if "validation" in row]
    return choose(rule, metric or leading, rows)


def _by_seed(values: list[tuple[int, float | None]]) -> list[float]:
    """Return the mean over held-out domains for each seed, over the domains that define the metric."""
    by_seed: dict[int, list[float]] = {}
    for seed, value in values:
        if value is not None and math.isfinite(value):
            by_seed.setdefault(seed, []).append(value)
    return [fmean(of_seed) for of_seed in by_seed.values()]


def _shown(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.4f} ({stdev(values):.4f})" if len(values) > 1 else f"{values[0]:.4f}"


def _has_tie(curve: Curve) -> bool:
    """Whether the best mean validation accuracy over domains stands in several rounds."""
    means = [
        fmean(domain["accuracy"] for domain in row["validation"].values())
        for row in curve.rounds
        if row.get("validation") and all("accuracy" in domain for domain in row["validation"].values())
    ]
    return bool(means) and means.count(max(means)) > 1


if __name__ == "__main__":
    main()
