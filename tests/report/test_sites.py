"""Each site by itself: means over seeds, pooled bins, and what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from farfield.report.collect import Sweep
from farfield.report.sites import _pooled_bins, panels, site_grid
from tests.report.sweeps import sweep

RULE = "source-validation"


def with_sites(sites: dict[tuple[str, int], dict[str, Any]]) -> Sweep:
    made = sweep({"fedavg": {"a": [0.8, 0.9], "b": [0.7, 0.7]}})
    for row in made.rows:
        row["selection"][RULE]["site"] = sites.get((row["held_out"], row["seed"]))
    return made


def test_bins_of_equal_parts_are_pooled_by_their_place() -> None:
    first = [{"low": 0.0, "high": 0.2, "rows": 10, "mean_score": 0.1, "share": 0.0}]
    second = [{"low": 0.0, "high": 0.3, "rows": 30, "mean_score": 0.2, "share": 0.4}]
    (pooled,) = _pooled_bins([first, second])
    # (10 · 0.1 + 30 · 0.2) / 40 and (30 · 0.4) / 40
    assert pooled == pytest.approx({"rows": 20, "mean_score": 0.175, "share": 0.3})
    assert _pooled_bins([first, [*second, *second]]) == [{"rows": 10, "mean_score": 0.1, "share": 0.0}]
    assert _pooled_bins([]) == []


def test_numbers_are_means_over_seeds_and_what_is_not_defined_is_a_dash() -> None:
    of = with_sites(
        {
            ("a", 0): {"rows": 50, "events": 10, "auroc": {"value": 0.7, "low": 0.6, "high": 0.8}, "brier": 0.2},
            ("a", 1): {"rows": 50, "events": 10, "auroc": {"value": 0.8, "low": 0.7, "high": 0.9}, "brier": 0.3},
            ("b", 0): {"rows": 20, "events": 0, "auroc": None, "brier": 0.1, "too_thin": "no row of class 1"},
        }
    )
    grid = site_grid(of, RULE, "fedavg")
    assert grid is not None
    assert [c.heading for c in grid.columns] == ["site", "rows", "events", "AUROC", "Brier score"]
    assert [cell.text for cell in grid.rows[0]] == ["a", "50", "10", "0.750", "0.250"]
    assert grid.rows[0][3].detail == "[0.650, 0.850]"
    assert [cell.text for cell in grid.rows[1]] == ["b", "20", "0", "–", "0.100"]
    assert grid.rows[1][0].detail == "no row of class 1"


def test_a_mean_over_fewer_seeds_says_so() -> None:
    both = {"rows": 50, "events": 10, "brier": 0.2}
    of = with_sites(
        {
            ("a", 0): {
                **both,
                "auroc": {"value": 0.7, "low": 0.6, "high": 0.8},
                "calibration": {"slope": 0.8, "intercept": 0.1},
            },
            ("a", 1): {
                **both,
                "auroc": {"value": 0.9, "low": None, "high": None},
                "calibration": {"slope": None, "intercept": 0.3},
            },
            ("b", 0): both,
        }
    )
    grid = site_grid(of, RULE, "fedavg")
    assert grid is not None
    first = {column.heading: cell for column, cell in zip(grid.columns, grid.rows[0], strict=True)}
    assert (first["slope"].text, first["slope"].detail) == ("0.800", "over 1 of 2 seeds")
    assert (first["intercept"].text, first["intercept"].detail) == ("0.200", "")
    assert (first["AUROC"].text, first["AUROC"].detail) == ("0.800", "[0.600, 0.800] over 1 of 2 seeds")
    assert grid.rows[1][1].detail == "over 1 of 2 seeds"
    assert "A cell that says so is a mean over fewer seeds: the others have no such figure." in grid.notes
    facts = dict(panels(of, RULE, "fedavg")[0].facts)
    assert facts["calibration slope"] == "0.800 over 1 of 2 seeds"


def test_methods_without_such_figures_have_no_table_and_no_panel() -> None:
    of = with_sites({})
    assert site_grid(of, RULE, "fedavg") is None
    assert panels(of, RULE, "fedavg") == []


def test_a_panel_says_which_classes_no_training_domain_has() -> None:
    site = {"rows": 50, "unseen": {"rare": 3}, "confusion": [[1, 2], [3, 4]]}
    (panel,) = panels(with_sites({("a", 0): site}), RULE, "fedavg")
    assert panel.remarks == ("Classes that no training domain has: rare (3 rows).",)
    assert panel.confusion is not None
    assert [[cell.text for cell in row] for row in panel.confusion.rows] == [["0", "1", "2"], ["1", "3", "4"]]
