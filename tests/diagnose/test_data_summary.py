from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farfield as ff
from farfield.diagnose.data_summary import DataSummary, summarise, together
from tests.tasks.tables import visits, write


def test_rows_and_classes_are_counted_by_domain(tmp_path: Path) -> None:
    frame = visits(60)
    task = ff.read_table(write(frame, tmp_path / "visits.csv"), label="died", domain="hospital")
    data = summarise(task, ["north"])
    assert [d.name for d in data.domains] == ["north", "south", "west"]
    for domain in data.domains:
        died = frame.loc[frame["hospital"] == domain.name, "died"]
        assert (domain.rows, domain.counts) == (20, (int((died == "no").sum()), int((died == "yes").sum())))
    # age, smokes, ward (three levels and a gap), pressure and its gap
    assert (data.rows, data.columns, data.shape, data.held_out) == (60, 4, (8,), ("north",))
    assert DataSummary.model_validate_json(data.model_dump_json()) == data


def test_a_number_has_mean_and_deviation_and_domains_can_be_joined() -> None:
    y = {"a": np.array([1.0, 3.0]), "b": np.array([5.0, 5.0, 11.0])}
    task = ff.task_from_arrays("n", {site: (np.arange(2.0 * len(v)).reshape(-1, 2), v) for site, v in y.items()})
    data = summarise(task)
    assert [(d.mean, d.std) for d in data.domains] == [(2.0, 1.0), (7.0, pytest.approx(8**0.5))]
    every = together(data.domains, "all")
    whole = np.concatenate(list(y.values()))
    assert (every.rows, every.mean, every.std) == (5, pytest.approx(whole.mean()), pytest.approx(whole.std()))


def test_images_have_a_shape_and_no_columns() -> None:
    x = np.zeros((4, 3, 8, 8), dtype=np.uint8)
    task = ff.task_from_arrays("i", {"a": (x, [0, 1, 0, 1]), "b": (x, [1, 1, 1, 0])})
    data = summarise(task)
    assert (data.shape, data.columns, data.domains[1].counts) == ((3, 8, 8), None, (1, 3))
