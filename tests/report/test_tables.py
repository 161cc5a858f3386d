from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table as RichTable

from farfield.errors import UserError
from farfield.report.collect import Sweep
from farfield.report.grid import Cell, Column, Grid
from farfield.report.result_table import ResultLine, ResultTable
from farfield.report.tables import cost_table, fairness_table, metric_table, result_table
from tests.report.sweeps import sweep

# The 97.5 % quantile of t with two degrees of freedom.
T2 = 4.30265272991

THREE_DOMAINS = {
    "fedavg": {"art": [0.50, 0.70], "photo": [0.70, 0.70], "sketch": [0.70, 0.90]},
    "fedprox": {"art": [0.53, 0.73], "photo": [0.72, 0.72], "sketch": [0.71, 0.91]},
    "scaffold": {"art": [0.40, 0.60], "photo": [0.59, 0.59], "sketch": [0.58, 0.78]},
}


def table(of: Sweep, rule: str = "source-validation") -> ResultTable:
    return result_table(of, rule)


def line(of: ResultTable, algorithm: str) -> ResultLine:
    return next(line for line in of.lines if line.algorithm == algorithm)


def printed(shown: RichTable, width: int = 100) -> str:
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(shown)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_domain_is_averaged_over_its_seeds() -> None:
    art = line(table(sweep(THREE_DOMAINS)), "fedavg").domains["art"]
    assert art is not None
    assert art.mean == pytest.approx(0.60)
    assert art.std == pytest.approx(math.sqrt(0.02))
    assert art.n == 2


def test_the_overall_interval_is_over_domains_and_not_over_runs() -> None:
    results = table(sweep(THREE_DOMAINS))
    overall = line(results, "fedavg").overall
    assert results.unit == "domains"
    assert overall is not None
    # domain means 0.6, 0.7, 0.8
    assert (overall.mean, overall.n) == (pytest.approx(0.70), 3)
    assert overall.high == pytest.approx(0.70 + T2 * 0.1 / math.sqrt(3))
    assert overall.low == pytest.approx(0.70 - T2 * 0.1 / math.sqrt(3))
    assert "± is a 95 % interval over domains" in " ".join(results.notes())


def test_methods_come_in_the_order_of_the_plan_and_the_worst_domain_is_named() -> None:
    results = table(sweep(THREE_DOMAINS))
    assert [line.algorithm for line in results.lines] == ["fedavg", "fedprox", "scaffold"]
    worst = line(results, "scaffold")
    assert (worst.worst_domain, worst.worst) == ("art", pytest.approx(0.50))


def test_differences_are_paired_and_corrected() -> None:
    results = table(sweep(THREE_DOMAINS))
    prox, scaffold = line(results, "fedprox").difference, line(results, "scaffold").difference
    assert prox is not None
    assert scaffold is not None
    # by domain +0.03, +0.02, +0.01: mean 0.02, standard deviation 0.01
    assert prox.mean == pytest.approx(0.02)
    assert prox.high == pytest.approx(0.02 + T2 * 0.01 / math.sqrt(3))
    # for two degrees of freedom p = 1 − t / √(2 + t²), here with t = 2√3 and t = 11√3
    assert prox.p_value == pytest.approx(1 - math.sqrt(12 / 14))
    assert scaffold.p_value == pytest.approx(1 - math.sqrt(363 / 365))
    assert scaffold.p_holm == pytest.approx(2 * (1 - math.sqrt(363 / 365)))
    assert prox.p_holm == prox.p_value
    assert (prox.verdict, scaffold.verdict) == ("no difference beyond chance", "worse")
    assert line(results, "fedavg").difference is None
    assert line(results, "fedprox").domain_differences == pytest.approx({"art": 0.03, "photo": 0.02, "sketch": 0.01})


def test_dicts_are_flat_and_hold_shares_of_one() -> None:
    first, second, third = table(sweep(THREE_DOMAINS)).to_dicts()
    assert all(not isinstance(value, dict | list | tuple) for value in first.values())
    assert first.keys() == second.keys() == third.keys()
    assert first["accuracy[art]"] == pytest.approx(0.60)
    assert first["accuracy_std[art]"] == pytest.approx(math.sqrt(0.02))
    assert (first["difference"], first["verdict"]) == (None, None)
    assert (second["mean"], second["difference"]) == (pytest.approx(0.72), pytest.approx(0.02))
    assert (second["unit"], second["difference_unit"], second["runs"]) == ("domains", "domains", 6)


def test_accuracy_is_printed_in_percent_with_one_decimal() -> None:
    text = printed(table(sweep(THREE_DOMAINS)).render())
    assert "accuracy in % on held-out domains (higher is better); rounds chosen by source-validation" in " ".join(
        text.split()
    )
    prox = next(row for row in text.splitlines() if row.startswith("fedprox")).split()
    assert prox == ["fedprox", "72.0", "+2.0", "within", "chance", "63.0", "63.0", "72.0", "81.0"]
    below = text.splitlines()[next(i for i, row in enumerate(text.splitlines()) if row.startswith("fedprox")) + 1]
    assert below.split()[:5] == ["±22.4", "[−0.5,", "4.5]", "p", "0.074,"]
    assert below.split()[-5:] == ["on", "art", "±14.1", "±0.0", "±14.1"]


def test_six_domains_fit_in_a_hundred_columns() -> None:
    names = [f"hospital-{n}" for n in range(6)]
    of = {a: {d: [0.5, 0.6, 0.7] for d in names} for a in ("erm", "local-only", "fedavg", "fediir+fedomg")}
    text = printed(table(sweep(of)).render(), width=300)
    assert max(len(row.rstrip()) for row in text.splitlines()) <= 100
    assert text.count("60.0") == 4 * (6 + 2)


def test_twenty_domains_leave_the_terminal_and_stay_in_the_dicts() -> None:
    of = {a: {f"d{n}": [0.5, 0.6] for n in range(20)} for a in ("fedavg", "fedprox")}
    results = table(sweep(of))
    text = printed(results.render(), width=300)
    assert max(len(row.rstrip()) for row in text.splitlines()) <= 100
    assert "20 columns do not fit here" in text
    assert "accuracy[d19]" in results.to_dicts()[0]
    assert "| d19 ± std |" in results.markdown()


def test_the_oracle_is_always_labelled() -> None:
    results = table(sweep(THREE_DOMAINS), "oracle")
    label = "oracle (looks at the held-out domain)"
    assert label in results.markdown()
    assert label in " ".join(printed(results.render()).split())
    assert {row["rule"] for row in results.to_dicts()} == {label}
    assert results.to_dicts()[0]["mean"] == pytest.approx(0.71)
    assert metric_table(sweep(THREE_DOMAINS), "oracle").to_dicts()[0]["rule"] == label
    assert fairness_table(sweep(THREE_DOMAINS), "oracle").to_dicts()[0]["rule"] == label


def test_a_rule_that_the_bench_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(
        UserError, match="did not choose by 'leave-one-domain-out'; it has source-validation, last, oracle"
    ):
        table(sweep(THREE_DOMAINS), "leave-one-domain-out")


def test_in_a_regression_less_is_better() -> None:
    losses = {"fedavg": {"a": [2.0], "b": [3.0], "c": [4.0]}, "fedprox": {"a": [1.0], "b": [1.9], "c": [2.8]}}
    results = table(sweep(losses, "regression"))
    prox = line(results, "fedprox")
    assert (results.metric, results.higher_is_better) == ("rmse", False)
    assert prox.difference is not None
    assert prox.difference.mean == pytest.approx(-1.1)
    assert prox.difference.verdict == "better"
    assert (prox.worst_domain, prox.worst) == ("c", pytest.approx(2.8))
    assert results.grid().title.startswith("root mean squared error on held-out domains (lower is better)")
    assert "| fedprox | 1.900 ±2.236 | −1.100 [−1.348, −0.852] | better p 0.003 | 2.800 on c |" in results.markdown()


def test_one_seed_says_so() -> None:
    several = table(sweep({a: {"x": [0.5], "y": [0.6]} for a in ("fedavg", "fedprox")}))
    assert "one seed: no interval within a domain" in " ".join(several.notes())
    assert all(s is not None and s.std is None for s in several.lines[0].domains.values())
    one = table(sweep({a: {"x": [0.5]} for a in ("fedavg", "fedprox")}))
    assert "one seed: no interval" in " ".join(one.notes())
    assert one.lines[0].overall is not None
    assert one.lines[0].overall.low is None
    assert "±" not in one.markdown().split("\n\n")[1]


def test_with_one_held_out_domain_the_interval_is_over_seeds() -> None:
    results = table(sweep({"fedavg": {"x": [0.5, 0.6, 0.7]}}))
    overall = results.lines[0].overall
    assert results.unit == "seeds"
    assert overall is not None
    assert (overall.mean, overall.n) == (pytest.approx(0.6), 3)
    assert overall.high == pytest.approx(0.6 + T2 * 0.1 / math.sqrt(3))
    assert "not how another domain would do" in " ".join(results.notes())


def test_two_domains_have_no_interval_and_no_verdict() -> None:
    results = table(
        sweep({"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}, "fedprox": {"x": [0.6, 0.7], "y": [0.6, 0.8]}})
    )
    difference = line(results, "fedprox").difference
    assert difference is not None
    assert (difference.unit, difference.n, difference.low, difference.p_value) == ("domains", 2, None, None)
    assert difference.verdict == "too few to say"
    assert "an interval and a verdict need 3 shared domains" in " ".join(results.notes())
    assert results.grid().rows[0][1].detail == ""


def test_without_fedavg_there_is_no_difference_column() -> None:
    results = table(sweep({"fedprox": {"x": [0.5], "y": [0.6]}}))
    assert results.baseline is None
    assert not [key for key in results.to_dicts()[0] if "difference" in key or key == "verdict"]
    assert [c.heading for c in results.grid().columns] == ["method", "mean", "worst domain", "x", "y"]
    assert "fedavg was not run, so no differences are shown." in results.notes()


def test_failed_and_missing_runs_are_counted_and_an_incomplete_mean_is_called_so() -> None:
    of = sweep(
        {"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}, "fedprox": {"x": [0.7], "y": []}},
        failures=[{"algorithm": "fedprox", "held_out": "y", "seed": 0, "error": "ValueError: no"}],
    )
    prox = line(table(of), "fedprox")
    assert (prox.runs, prox.failed, prox.missing) == (1, 1, 2)
    assert prox.domains["y"] is None
    assert not prox.complete
    notes = " ".join(table(of).notes())
    assert (
        "fedprox: of 4 runs 1 failed and 2 missing; results on 1 of 2 domains, so its mean does not compare." in notes
    )
    assert "1 of 4 runs" in table(of).markdown()


def test_nothing_shared_with_the_baseline_is_said_and_not_computed() -> None:
    results = table(sweep({"fedavg": {"x": [0.5], "y": []}, "fedprox": {"x": [], "y": [0.6]}}, seeds=[0]))
    assert line(results, "fedprox").difference is None
    assert "nothing to compare" in results.markdown()


def test_a_diverged_run_stays_visible() -> None:
    results = table(sweep({"fedavg": {"x": [1.0], "y": [2.0]}, "fedprox": {"x": [None], "y": [1.0]}}, "regression"))
    prox = line(results, "fedprox")
    assert prox.overall is not None
    assert math.isnan(prox.overall.mean)
    assert prox.worst_domain == "x"
    assert "fedprox diverged on x: its rmse is not a finite number." in results.notes()
    assert "not finite" in printed(results.render())


def test_a_sweep_without_any_result_still_makes_tables() -> None:
    of = replace(sweep(THREE_DOMAINS), rows=[], missing=18)
    assert table(of).lines[0].overall is None
    assert table(of).lines[0].missing == 6
    for made in (table(of), metric_table(of, "last"), fairness_table(of, "last"), cost_table(of)):
        assert len(made.to_dicts()) == 3
        assert "fedprox" in printed(made.render())


def test_references_are_marked() -> None:
    results = table(sweep({"erm": {"x": [0.9], "y": [0.9]}, "fedavg": {"x": [0.5], "y": [0.6]}}))
    assert [line.reference for line in results.lines] == [True, False]
    assert "| erm reference |" in results.markdown()


def test_every_metric_is_averaged_over_domains() -> None:
    record = metric_table(sweep(THREE_DOMAINS), "last").to_dicts()[1]
    assert record["accuracy"] == pytest.approx(0.72)
    assert record["auroc"] == pytest.approx(0.75)
    assert "average_precision" not in record
    text = printed(metric_table(sweep(THREE_DOMAINS), "last").render())
    assert "accuracy ↑" in text
    assert "loss ↓" in text


def test_a_metric_that_a_domain_cannot_define_says_over_how_many_it_is() -> None:
    of = sweep(THREE_DOMAINS)
    for row in of.rows:
        if row["held_out"] == "art":
            del row["selection"]["last"]["auroc"]
        elif row["held_out"] == "photo":
            row["selection"]["last"]["auroc"] = 0.65
    made = metric_table(of, "last")
    assert made.to_dicts()[0]["auroc"] == pytest.approx(0.70)
    assert made.to_dicts()[0]["auroc_domains"] == 2
    assert "0.700 2 of 3 domains" in made.markdown()


def test_fairness_is_over_the_domains_means() -> None:
    record = fairness_table(sweep(THREE_DOMAINS), "last").to_dicts()[0]
    # 0.6, 0.7, 0.8: population variance 0.02 / 3; shares 6/21, 7/21, 8/21
    assert record["variance"] == pytest.approx(0.02 / 3)
    assert record["entropy"] == pytest.approx(-sum(s / 21 * math.log(s / 21) for s in (6, 7, 8)))
    assert record["gap"] == pytest.approx(0.2)
    assert "| fedavg | 6.67 | 10.918 | 20.0 | 60.0 on art |" in fairness_table(sweep(THREE_DOMAINS), "last").markdown()


def test_fairness_of_a_regression_has_no_entropy_and_of_one_domain_has_nothing() -> None:
    made = fairness_table(sweep({"fedavg": {"x": [1.0], "y": [3.0]}}, "regression"), "last")
    assert (made.to_dicts()[0]["variance"], made.to_dicts()[0]["entropy"]) == (1.0, None)
    assert "entropy ↑" not in made.markdown()
    one = fairness_table(sweep({"fedavg": {"x": [0.5, 0.7]}}), "last")
    assert one.to_dicts()[0]["variance"] is None
    assert "One held-out domain" in one.markdown()


def test_cost_is_the_mean_of_a_run_with_its_traffic_by_phase() -> None:
    of = sweep(THREE_DOMAINS)
    of.rows[0]["local_steps"] = 600
    record = cost_table(of).to_dicts()[0]
    assert record["local_steps"] == pytest.approx(1100)
    assert (record["mb_up"], record["mb_up[train]"], record["mb_up[evaluate]"]) == pytest.approx((2.5, 2.4, 0.1))
    assert (record["mb_down[evaluate]"], record["seconds"], record["server_seconds"]) == pytest.approx((1.0, 1.5, 0.25))
    assert "| 1,100 | 38,400 | 2.50 train 2.40, evaluate 0.100 |" in cost_table(of).markdown()


def test_names_cannot_break_out_of_a_table() -> None:
    name = "[red]a|b](x) <script>"
    results = table(sweep({"fedavg": {name: [0.5], "y": [0.5]}}))
    assert r"[red]a\|b]\(x) &lt;script>" in results.markdown()
    grid = Grid("t", (Column("method", text=True),), ((Cell("[bold]x[/bold]\x1b[31m"),),))
    assert r"[bold]x[/bold]\x1b[31m" in printed(grid.render())
