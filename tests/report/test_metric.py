"""Another metric than accuracy in the lead."""

from __future__ import annotations

from datetime import date

import pytest

from farfield.errors import UserError
from farfield.protocol.leading_metric import metric_named
from farfield.report.collect import Sweep
from farfield.report.curves import held_out_curves
from farfield.report.page import render_report
from farfield.report.tables import fairness_table, result_table
from tests.report.sweeps import sweep

RULE = "source-validation"


def with_auroc(values: dict[str, dict[str, float | None]]) -> Sweep:
    """Accuracy says that fedavg is better; the AUROCs are as given, None where there is none."""
    made = sweep({"fedavg": {d: [0.9] for d in values["fedavg"]}, "fedprox": {d: [0.8] for d in values["fedprox"]}})
    for row in made.rows:
        auroc = values[row["algorithm"]][row["held_out"]]
        for chosen in row["selection"].values():
            chosen.pop("auroc")
            if auroc is not None:
                chosen["auroc"] = auroc
    for curve in made.curves:
        auroc = values[curve.algorithm][curve.held_out]
        for _, metrics in curve.target:
            if auroc is not None:
                metrics["auroc"] = auroc
    return made


FULL = {"fedavg": {"a": 0.6, "b": 0.65, "c": 0.7}, "fedprox": {"a": 0.7, "b": 0.76, "c": 0.81}}
ONE_CLASS = {name: {**of, "d": None} for name, of in FULL.items()}


def test_the_table_leads_with_the_metric_that_was_asked_for() -> None:
    table = result_table(with_auroc(FULL), RULE, "auroc")
    assert table.grid().title.startswith("AUROC on held-out domains (higher is better)")
    fedavg, fedprox = table.lines
    assert fedavg.overall is not None
    assert fedavg.overall.mean == pytest.approx(0.65)
    assert fedprox.difference is not None
    assert fedprox.difference.mean == pytest.approx(0.32 / 3)
    assert fedprox.difference.verdict == "better"
    assert result_table(with_auroc(FULL), RULE).metric == "accuracy"


def test_a_domain_without_the_metric_is_left_out_with_a_note() -> None:
    table = result_table(with_auroc(ONE_CLASS), RULE, "auroc")
    assert table.domains == ("a", "b", "c")
    assert table.notes()[0] == "AUROC is not defined on d (one class only); the table leaves that out."
    assert all((line.runs, line.missing) == (3, 0) for line in table.lines)
    assert table.lines[1].difference is not None
    assert table.lines[1].difference.verdict == "better"


def test_a_metric_that_is_defined_nowhere_gives_way() -> None:
    table = result_table(with_auroc({name: {"a": None, "b": None} for name in FULL}), RULE, "auroc")
    assert (table.metric, table.domains) == ("accuracy", ("a", "b"))
    assert table.notes()[0] == "AUROC is defined on no held-out domain, so accuracy stands here."


def test_the_page_leads_with_it_and_keeps_validation_as_it_was_measured() -> None:
    page = render_report(with_auroc(ONE_CLASS), date(2026, 3, 4), "auroc").replace("\N{NO-BREAK SPACE}", " ")
    assert "Use fedprox: it reaches 0.757" in page
    assert "AUROC on held-out domains by round" in page
    assert "accuracy, % on source validation by round" in page
    (fedavg, _) = held_out_curves(with_auroc(ONE_CLASS), "auroc")
    assert [value for _, value in fedavg.points] == pytest.approx([0.65, 0.65])


def test_entropy_is_for_shares_alone() -> None:
    headings = [c.heading for c in fairness_table(with_auroc(FULL), RULE, "loss").grid.columns]
    assert headings == ["method", "variance ↓", "best minus worst ↓", "worst domain"]
    regression = sweep({"fedavg": {"a": [2.0], "b": [3.0]}}, "regression")
    for row, r2 in zip(regression.rows, (-0.5, 0.5), strict=True):
        row["selection"][RULE]["r2"] = r2
    record = fairness_table(regression, RULE, "r2").records[0]
    assert (record["variance"], record["entropy"], record["worst_domain"]) == (0.25, None, "a")


@pytest.mark.parametrize(
    ("kind", "typed", "meant"),
    [
        ("classification", "F1", "macro_f1"),
        ("classification", "AUROC", "auroc"),
        ("classification", "average-precision", "average_precision"),
        ("regression", "mse", "loss"),
    ],
)
def test_metrics_go_by_the_names_that_people_type(kind: str, typed: str, meant: str) -> None:
    assert metric_named(kind, typed) == meant


def test_a_metric_of_another_kind_is_refused_with_the_choice() -> None:
    with pytest.raises(UserError, match="no metric 'auroc' for a regression; choose one of rmse, mae, r2, loss, or"):
        metric_named("regression", "auroc")
