"""The preparation's numbers in closed form, and what it does with what it never saw."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from farfield.tasks.task import Domain
from farfield.tasks.user_data.column_statistics import PreparationError
from farfield.tasks.user_data.preparation import FURTHEST, UNSEEN, Column, FittedTable, TablePreparation

NAN = float("nan")
COLUMNS = (
    Column("age", "number", missing=True),
    Column("smokes", "boolean", missing=True),
    Column("ward", "category", ("a", "b", "c"), missing=True),
)
#: Six rows: the last two are not fitted on.
RAW = [
    [30.0, 1.0, 0.0],
    [50.0, 0.0, 1.0],
    [NAN, 1.0, 0.0],
    [100.0, NAN, NAN],
    [9000.0, 0.0, 2.0],
    [NAN, NAN, NAN],
]


def domain(rows: list[list[float]] = RAW, y: list[float] | None = None) -> Domain:
    labels = torch.zeros(len(rows), dtype=torch.int64) if y is None else torch.tensor(y)
    return Domain("d", torch.tensor(rows, dtype=torch.float64), labels)


def fitted(rows: list[int] | None = None) -> FittedTable:
    return TablePreparation(COLUMNS).fit([(domain(), torch.tensor(rows or [0, 1, 2, 3]))])


def test_numbers_are_scaled_by_mean_and_deviation_and_missing_ones_are_the_median() -> None:
    known = np.array([30.0, 50.0, 100.0])
    age = fitted().columns[0]
    assert (age.fill, age.mean, age.scale) == (50.0, known.mean(), known.std())
    prepared = fitted().apply(domain().x)
    expected = [(30 - 60) / known.std(), (50 - 60) / known.std(), (50 - 60) / known.std(), (100 - 60) / known.std()]
    torch.testing.assert_close(prepared[:4, 0], torch.tensor(expected, dtype=torch.float32))
    assert prepared[:, 1].tolist() == [0, 0, 1, 0, 0, 1]


def test_a_missing_boolean_is_the_more_frequent_one_and_marked() -> None:
    prepared = fitted().apply(domain().x)
    assert prepared[:, 2].tolist() == [1, 0, 1, 1, 0, 1]
    assert prepared[:, 3].tolist() == [0, 0, 0, 1, 0, 1]


def test_a_category_is_one_of_its_levels_or_missing_and_a_level_never_fitted_on_is_nothing() -> None:
    prepared = fitted().apply(domain().x)
    assert prepared[:, 4:].tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 0],  # level c was in no fitting row
        [0, 0, 0, 1],
    ]
    strange = torch.tensor([[40.0, 1.0, UNSEEN]], dtype=torch.float64)
    assert fitted().apply(strange)[0, 4:].tolist() == [0, 0, 0, 0]


def test_the_width_is_that_of_the_columns_whatever_was_fitted_on() -> None:
    assert TablePreparation(COLUMNS).shape == (8,)
    for rows in ([0], [3], [0, 1, 2, 3, 4, 5]):
        assert fitted(rows).apply(domain().x).shape == (6, 8)


def test_what_did_not_vary_in_the_fitting_rows_gives_a_constant_zero() -> None:
    """No weight was ever trained for it, so a target that has it must not be judged by the initial weights."""
    prepared = fitted([0]).apply(domain().x)
    assert prepared[:, 0].tolist() == [0] * 6  # one age only
    assert prepared[:, 1].tolist() == [0] * 6  # none missing
    assert prepared[:, 2].tolist() == [0] * 6  # all smoke
    assert prepared[4].tolist() == [0] * 8


def test_a_column_without_any_value_in_the_fitting_rows_gives_zero() -> None:
    only_missing = fitted([2]).apply(domain().x)
    assert only_missing[:, 0].tolist() == [0] * 6
    assert torch.isfinite(only_missing).all()


def test_rows_that_are_not_fitted_on_change_nothing() -> None:
    changed = [*RAW[:4], [-5.0, 1.0, 1.0], [7.0, 0.0, 0.0]]
    other = TablePreparation(COLUMNS).fit([(domain(changed), torch.arange(4))])
    assert other == fitted()


def test_the_order_of_the_fitting_rows_and_of_their_domains_changes_nothing() -> None:
    one, other = domain(RAW[:2]), domain(RAW[2:4])
    rows, reversed_rows = torch.tensor([0, 1]), torch.tensor([1, 0])
    parts = TablePreparation(COLUMNS).fit([(one, rows), (other, rows)])
    assert TablePreparation(COLUMNS).fit([(other, reversed_rows), (one, reversed_rows)]) == parts
    assert TablePreparation(COLUMNS).fit([(domain(), torch.tensor([3, 1, 0, 2]))]) == fitted()


def test_a_mistyped_number_stays_finite() -> None:
    wild = torch.tensor([[1e300, 1.0, 0.0], [-1e300, 1.0, 0.0]], dtype=torch.float64)
    assert fitted().apply(wild)[:, 0].tolist() == [FURTHEST, -FURTHEST]


def test_a_regression_learns_scaled_labels_and_answers_in_the_label_s_units() -> None:
    y = [10.0, 20.0, 60.0, 30.0, 999.0, 999.0]
    preparation = TablePreparation(COLUMNS, scale_label=True).fit([(domain(y=y), torch.arange(4))])
    assert (preparation.label_mean, preparation.label_scale) == (30.0, pytest.approx(np.std(y[:4])))
    labels = torch.tensor(y)
    torch.testing.assert_close(preparation.targets(labels)[:4].mean(), torch.tensor(0.0))
    torch.testing.assert_close(preparation.outputs(preparation.targets(labels)), labels)


def test_class_numbers_stay_as_they_are() -> None:
    y = torch.tensor([0, 1, 2])
    assert fitted().targets(y) is y


def test_a_preparation_survives_json() -> None:
    again = FittedTable.from_json(json.loads(json.dumps(fitted().to_json())))
    assert again == fitted()
    assert torch.equal(again.apply(domain().x), fitted().apply(domain().x))


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"kind": "images"}, "'images' of format 1"),
        ({"format": 9}, "format 9"),
        ({"columns": [{"name": "age"}]}, "damaged"),
        ({"label": {}}, "damaged"),
    ],
)
def test_a_preparation_of_another_kind_or_damaged_is_refused(change: dict[str, object], phrase: str) -> None:
    with pytest.raises(PreparationError, match=phrase):
        FittedTable.from_json({**fitted().to_json(), **change})


def test_rows_that_cannot_be_prepared_are_named() -> None:
    preparation = TablePreparation(COLUMNS)
    with pytest.raises(ValueError, match=r"domain 'd': raw rows are float64 with 3 columns, not .* \(1, 2\)"):
        preparation.check(domain([[1.0, 2.0]]))
    with pytest.raises(ValueError, match="infinite value in row 2, column 'age'"):
        preparation.check(domain([[1.0, 1.0, 0.0], [float("inf"), 1.0, 0.0]]))
    with pytest.raises(ValueError, match="code 3 in column 'ward', which has 3 levels"):
        preparation.check(domain([[1.0, 1.0, 3.0]]))
    preparation.check(domain())
