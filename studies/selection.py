"""Which rule should choose the round: the figures behind the default, over several tasks and many seeds.

    python studies/selection.py                                  # heart-disease, 10 seeds; about a minute on two cores
    python studies/selection.py --task tcga-brca --seeds 20

For each rule: the mean over held-out domains of the leading metric on the held-out domain, as a mean and a standard
deviation over seeds; the accuracy beside it; and the median of the chosen rounds. `ties` is the share of runs in which
several rounds have the best validation accuracy.
"""

from __future__ import annotations

import argparse
from statistics import fmean, median, stdev

import farfield as ff
from farfield.report.collect import Curve

RULES = ("source-validation", "source-metric", "source-accuracy", "last", "oracle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="heart-disease", help="a task whose data is here")
    parser.add_argument("--algorithms", default="fedavg", help="methods, with commas")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=None, help="the task's own number by default")
    given = parser.parse_args()
    result = ff.bench(
        given.task,
        given.algorithms.split(","),
        seeds=given.seeds,
        rounds=given.rounds,
        evaluate_every=1,
        rules=RULES,
        diagnose=False,
    )
    print(f"{given.task}: {result.metric} leads ({result.sweep.plan['metric_reason']}); {given.seeds} seeds")
    tied = fmean(_has_tie(curve) for curve in result.sweep.curves)
    print(f"ties for the best validation accuracy in {100 * tied:.0f} % of {len(result.sweep.curves)} runs")
    print(f"{'method':18}{'rule':20}{result.metric:>22}{'accuracy':>18}{'median round':>14}")
    for algorithm in given.algorithms.split(","):
        for rule in RULES:
            rows = [row for row in result.rows if row["algorithm"] == algorithm]
            rounds = median(row["selection"][rule]["round"] for row in rows)
            leading, accuracy = (_by_seed(rows, rule, name) for name in (result.metric, "accuracy"))
            print(f"{algorithm:18}{rule:20}{_shown(leading):>22}{_shown(accuracy):>18}{rounds:>14g}")


def _by_seed(rows: list[dict[str, object]], rule: str, metric: str) -> list[float]:
    """Return the mean over held-out domains for each seed, over the domains that define the metric."""
    by_seed: dict[object, list[float]] = {}
    for row in rows:
        value = row["selection"][rule].get(metric)  # type: ignore[index]
        if value is not None:
            by_seed.setdefault(row["seed"], []).append(value)
    return [fmean(values) for values in by_seed.values()]


def _shown(values: list[float]) -> str:
    return f"{fmean(values):.4f} ({stdev(values):.4f})" if len(values) > 1 else "".join(f"{v:.4f}" for v in values)


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
