"""How often is a method without any effect called better or worse?

    FARFIELD_DATA=… python -m studies.false_alarms [--short]

Real nulls: FedAvg is run with many seeds on real tasks; three seeds against three others is a comparison in which
nothing differs, and five such groups against one baseline is a bench of five methods.

Simulation: runs on different held-out domains share their training domains. Every domain has its own parameter, drawn
around a common one; a "method" is a fixed set of weights on the training domains, drawn at random, so that no method is
better than another over all draws. A held-out domain's score falls with its distance from the weighted mean of the
others. Where one domain lies far out, a method that leans on it does badly on all the others at once: the held-out
domains are then not independent evidence.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from farfield.protocol.statistics import LEVEL, Values, compare, on_these_domains, paired_difference

TASKS = ("heart-disease", "eicu-mortality", "tcga-brca")


def called(values: Values, baseline: Values) -> bool:
    """Return whether one comparison for a new domain ends in a verdict of better or worse."""
    return paired_difference(values, baseline).verdict in ("better", "worse")


def real_nulls(task: str, seeds: int, draws: int) -> tuple[float, float, float, int]:
    """Run FedAvg and compare groups of its seeds.

    Return the share of verdicts over domains with three seeds each, on these domains with five seeds each, and of
    benches of five "methods" with any verdict; and the number of domains.
    """
    import farfield as ff
    from farfield.report.collect import collect
    from farfield.report.findings import main_rule
    from farfield.report.tables import result_table

    with tempfile.TemporaryDirectory() as folder:
        ff.bench(task, ["fedavg"], seeds=seeds, out=Path(folder) / "bench")
        sweep = collect(Path(folder) / "bench", "study")
        rule = main_rule(sweep.plan)
        metric = result_table(sweep, rule).metric
        scores = {(row["held_out"], row["seed"]): row["selection"][rule].get(metric) for row in sweep.rows}
    domains = sorted({domain for domain, _ in scores})
    domains = [domain for domain in domains if all(scores.get((domain, s)) is not None for s in range(seeds))]
    rng = np.random.default_rng(0)

    def group(chosen: list[int]) -> Values:
        return {(domain, i): scores[domain, seed] for domain in domains for i, seed in enumerate(chosen)}

    new = these = benches = 0
    for _ in range(draws):
        order = rng.permutation(seeds).tolist()
        new += called(group(order[:3]), group(order[3:6]))
        these += on_these_domains(group(order[:5]), group(order[5:10])).verdict in ("better", "worse")
        methods = {str(i): group(rng.permutation(order[3:])[:3].tolist()) for i in range(5)}
        found = compare(methods, group(order[:3]))
        benches += any(d.verdict in ("better", "worse") for d in found.values())
    return new / draws, these / draws, benches / draws, len(domains)


def shared_training(domains: int, shift: float, tail: float, draws: int, seed: int = 0) -> float:
    """Return the share of verdicts between two methods that are alike, with training domains in common.

    `shift` is how far the domains lie apart in units of the noise of a domain's score; `tail` is the degrees of freedom
    of their distribution (few: now and then one lies far out).
    """
    rng = np.random.default_rng(seed)
    alarms = 0
    for _ in range(draws):
        place = shift * rng.standard_t(tail, (domains, 3))
        scores = []
        for _method in range(2):
            weight = rng.dirichlet(np.ones(domains))
            others = np.where(np.eye(domains, dtype=bool), 0.0, weight[None, :])
            centre = (others / others.sum(axis=1, keepdims=True)) @ place
            scores.append(-np.linalg.norm(place - centre, axis=1) + rng.normal(0, 1, domains))
        first, second = ({(str(d), 0): float(s) for d, s in enumerate(of)} for of in scores)
        alarms += called(first, second)
    return alarms / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer seeds, tasks and draws: under a minute")
    short = parser.parse_args().short
    print(f"share of comparisons without any effect that are called better or worse; made for {100 * LEVEL:.0f} %\n")
    print(f"{'simulation, shared training':32} {'domains':>7} {'called':>8}")
    for shift, tail in ((0.0, 30.0), (1.0, 30.0), (10.0, 30.0), (3.0, 3.0), (10.0, 3.0)):
        for domains in (4, 6, 10):
            share = shared_training(domains, shift, tail, 500 if short else 4000)
            label = f"shift {shift:g}, {'some far out' if tail < 10 else 'normal'}"
            print(f"{label:32} {domains:7} {100 * share:6.1f} %")
    if "FARFIELD_DATA" not in os.environ:
        print("FARFIELD_DATA is not set: no real tasks", file=sys.stderr)
        return
    print(f"\n{'FedAvg against FedAvg':24} {'domains':>7} {'new domain':>11} {'these domains':>14} {'5 methods':>10}")
    for task in itertools.islice(TASKS, 1 if short else None):
        new, these, benches, domains = real_nulls(task, 12 if short else 24, 300 if short else 2000)
        print(f"{task:24} {domains:7} {100 * new:9.1f} % {100 * these:12.1f} % {100 * benches:8.1f} %")


if __name__ == "__main__":
    main()
