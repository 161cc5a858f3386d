"""Methods against `prior`: who gets a verdict, over which family, and what `prior` scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farfield.diagnose.data_summary import DataSummary, DomainSummary
from farfield.report.collect import Sweep
from farfield.report.prior import prior_values
from farfield.report.prior_table import prior_grid
from farfield.report.tables import result_table
from tests.report.sweeps import Scores, sweep

RULE = "last"
HALF = dict.fromkeys("abcd", (50, 50))


def counted(scores: Scores, counts: dict[str, tuple[int, int]], **changes: Any) -> Sweep:
    """A sweep whose data has so many rows of each class."""
    domains = tuple(DomainSummary(name=d, rows=sum(c), counts=c) for d, c in counts.items())
    data = DataSummary(task="toy", kind="classification", classes=("no", "yes"), domains=domains, shape=(8,))
    return replace(sweep(scores, **changes), data=data)


def verdicts(of: Sweep) -> dict[str, str]:
    return {line.algorithm: line.over_prior.verdict for line in result_table(of, RULE).lines if line.over_prior}


def test_survivors_alone_are_not_better_than_prior() -> None:
    good = {d: [0.80 + 0.01 * i, 0.82] for i, d in enumerate("abcd")}
    of = counted({"fedavg": good, "fedprox": {**good, "d": [0.83]}}, HALF)
    assert verdicts(of) == {"fedavg": "better than prior", "fedprox": "too few to say"}


def test_references_do_not_weaken_the_verdict_on_a_method() -> None:
    # Differences .03, .05, .07, .09: with the references in the family p would be corrected for three.
    scores = {d: [0.53 + 0.02 * i] for i, d in enumerate("abcd")}
    worthless = {d: [0.5 + 0.01 * (-1) ** i] for i, d in enumerate("abcd")}
    alone = result_table(counted({"fedavg": scores}, HALF), RULE).lines[0].over_prior
    with_references = counted({"fedavg": scores, "erm": worthless, "local-only": worthless}, HALF)
    table = result_table(with_references, RULE)
    assert alone is not None
    assert table.lines[0].over_prior == alone
    assert alone.p_holm == pytest.approx(alone.p_value)
    of_reference = table.lines[1].over_prior
    assert of_reference is not None
    assert of_reference.p_value is not None
    assert of_reference.p_holm == pytest.approx(min(1.0, 2 * of_reference.p_value))
    grid = prior_grid(table)
    assert grid is not None
    assert "Holm-corrected over the methods, references apart." in grid.notes[0]


def test_the_prior_of_a_fold_learns_from_the_domains_outside_it() -> None:
    counts = {"a": (10, 90), "b": (10, 90), "c": (60, 40), "d": (60, 40)}
    scores = {"fedavg": {domain: [0.8] for domain in counts}}
    alone = prior_values(counted(scores, counts), RULE, "accuracy", tuple(counts))
    # Without a alone, 'yes' is the commonest class (130 of 300 are 'no'); without a and b it is 'no'.
    assert alone["a", 0] == pytest.approx(0.9)
    together = counted(scores, counts, folds={"a+b": ["a", "b"], "c+d": ["c", "d"]})
    values = prior_values(together, RULE, "accuracy", tuple(counts))
    assert values == {("a", 0): 0.1, ("b", 0): 0.1, ("c", 0): 0.4, ("d", 0): 0.4}


def test_of_equally_common_classes_the_prior_takes_the_one_that_scores_best() -> None:
    counts = {"a": (30, 20), "b": (20, 30), "va": (25, 75)}
    of = counted({"fedavg": {d: [0.8] for d in counts}}, counts)
    assert prior_values(of, RULE, "accuracy", ("va",)) == {("va", 0): 0.75}
