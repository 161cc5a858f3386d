"""Statistics that domains tell alone: merged, they are those of the joined rows, and nonsense is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from farfield.tasks.task import Domain
from farfield.tasks.user_data.bag_of_words import FittedWords, WordPreparation
from farfield.tasks.user_data.column_statistics import PreparationError, weighted_median
from farfield.tasks.user_data.preparation import Column, FittedTable, TablePreparation

NAN = math.nan
PREPARATION = TablePreparation(
    (
        Column("age", "number", missing=True),
        Column("smokes", "boolean", missing=True),
        Column("ward", "category", ("a", "b", "c"), missing=True),
    ),
    scale_label=True,
)

Rows = list[tuple[float, float, float, float]]


def tell(rows: Rows) -> dict[str, Any]:
    table = torch.tensor(rows, dtype=torch.float64)
    return PREPARATION.statistics(table[:, :3], table[:, 3].float())


# Numbers, few of them different, so that constant columns occur; None of a kind may be known in a domain.
numbers = st.one_of(st.just(NAN), st.sampled_from([0.1, 7.0]), st.floats(-1e6, 1e6, width=32))
row = st.tuples(numbers, st.sampled_from([NAN, 0.0, 1.0]), st.sampled_from([NAN, 0.0, 1.0, 2.0]), st.floats(-9, 9))
one_value = st.tuples(
    st.sampled_from([NAN, 0.1]), st.sampled_from([NAN, 1.0]), st.sampled_from([NAN, 2.0]), st.just(3.0)
)
domain_rows = st.one_of(
    st.lists(row, min_size=1, max_size=12),
    st.builds(lambda r, n: [r] * n, one_value, st.integers(1, 9)),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(domain_rows, min_size=1, max_size=5), st.randoms())
def test_merged_statistics_are_those_of_the_joined_rows(domains: list[Rows], order: Any) -> None:
    told = [tell(rows) for rows in domains]
    fitted = PREPARATION.merge(told)
    joined = np.array([r for rows in domains for r in rows], dtype=np.float64)
    age, smokes, ward = fitted.columns
    known = joined[~np.isnan(joined[:, 0]), 0]
    varies = len(known) > 0 and known.min() < known.max()
    some_missing = bool(0 < len(known) < len(joined))
    assert age.live == (varies, some_missing)
    if varies:
        # Relative to the size of the values, which is what float64 can promise.
        size = np.abs(known).max()
        assert age.mean == pytest.approx(known.mean(), rel=1e-12, abs=1e-12 * size)
        assert age.scale == pytest.approx(known.std(), rel=1e-9, abs=1e-12 * size)
        assert known.min() <= age.fill <= known.max()
        assert min((known <= age.fill).mean(), (known >= age.fill).mean()) >= 0.25
    elif len(known):
        assert (age.fill, age.mean, age.scale) == (known[0], known[0], 1.0)
    true = joined[~np.isnan(joined[:, 1]), 1]
    assert smokes.live == (len(true) > 0 and true.min() < true.max(), bool(0 < len(true) < len(joined)))
    assert smokes.fill == float(len(true) > 0 and true.mean() > 0.5)
    assert ward.live == (*(bool((joined[:, 2] == code).any()) for code in range(3)), bool(np.isnan(joined[:, 2]).any()))
    labels = joined[:, 3].astype(np.float32).astype(np.float64)
    assert fitted.label_mean == pytest.approx(labels.mean(), rel=1e-12, abs=1e-11)
    assert fitted.label_scale == pytest.approx(labels.std() or 1.0, rel=1e-9, abs=1e-11) or labels.std() < 1e-11
    # Neither how the parts travelled nor in which order they came changes a bit.
    order.shuffle(told)
    assert PREPARATION.merge([json.loads(json.dumps(part)) for part in told]) == fitted


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e9, 1e9)))
@settings(max_examples=50, deadline=None)
def test_one_domain_has_its_exact_median_mean_and_deviation(values: np.ndarray) -> None:
    preparation = TablePreparation((Column("age", "number"),))
    x = torch.from_numpy(values[:, None].copy())
    (age,) = preparation.merge([preparation.statistics(x, torch.zeros(len(x)))]).columns
    assert age.fill == np.median(values)
    if age.live[0]:
        assert (age.mean, age.scale) == (values.mean(), values.std() or 1.0)


def test_the_mean_and_deviation_agree_with_numpy_to_twelve_digits() -> None:
    draw = np.random.default_rng(5)
    parts = [draw.normal(60 + 9 * site, 5 + site, 50 * (site + 1)) for site in range(4)]
    preparation = TablePreparation((Column("age", "number"),))
    told = [preparation.statistics(torch.from_numpy(part[:, None]), torch.zeros(len(part))) for part in parts]
    (age,) = preparation.merge(told).columns
    joined = np.concatenate(parts)
    assert age.mean == pytest.approx(joined.mean(), rel=1e-12)
    assert age.scale == pytest.approx(joined.std(), rel=1e-12)


def test_the_weighted_median_is_where_half_of_the_weight_lies_below() -> None:
    assert weighted_median([(5.0, 1)]) == 5.0
    assert weighted_median([(9.0, 2), (1.0, 3), (4.0, 2)]) == 4.0
    assert weighted_median([(9.0, 10), (1.0, 3), (4.0, 2)]) == 9.0
    assert weighted_median([(8.0, 2), (1.0, 1), (4.0, 1)]) == 6.0


def test_domains_that_hold_one_value_each_vary_together() -> None:
    three = [tell([(0.1, 0.0, NAN, 0.0)] * 3), tell([(0.1, 0.0, NAN, 0.0)] * 7), tell([(NAN, NAN, NAN, 0.0)])]
    assert PREPARATION.merge(three).columns[0].live == (False, True)
    other = tell([(0.2, 1.0, 1.0, 0.0)])
    assert PREPARATION.merge([*three, other]).columns[0].live == (True, True)
    assert PREPARATION.merge([*three, other]).columns[1].live == (True, True)


def test_a_domain_tells_no_row_and_no_count_of_a_category() -> None:
    told = tell([(30.0, 1.0, 0.0, 2.0), (50.0, 0.0, 2.0, 4.0), (NAN, 1.0, 0.0, 6.0)])
    assert told == {
        "kind": "table-statistics",
        "format": 1,
        "rows": 3,
        "columns": [
            {"known": 2, "mean": 40.0, "squares": 200.0, "median": 40.0, "varies": True},
            {"known": 3, "true": 2},
            {"seen": [True, False, True], "missing": False},
        ],
        "label": {"known": 3, "mean": 4.0, "squares": 8.0},
    }


def test_numbers_too_large_to_be_squared_stay_numbers() -> None:
    fitted = PREPARATION.merge([tell([(1e300, 1.0, 0.0, 0.0), (-1e300, 1.0, 0.0, 1.0)]), tell([(4.0, 1.0, 0.0, 0.0)])])
    rows = torch.tensor([[1e300, 1.0, 0.0], [4.0, 0.0, 1.0], [NAN, 0.0, 1.0]], dtype=torch.float64)
    assert torch.isfinite(fitted.apply(rows)).all()


def _with(column: int, **change: object) -> dict[str, Any]:
    told = tell([(30.0, 1.0, 0.0, 2.0), (50.0, 0.0, 2.0, 4.0)])
    told["columns"][column] = {**told["columns"][column], **change}
    return told


@pytest.mark.parametrize(
    ("told", "phrase"),
    [
        (_with(0, mean=NAN), "column 'age' cannot be used: 'mean' input should be"),
        (_with(0, mean=1e200), "column 'age' .* 'mean'"),
        (_with(0, squares=-1.0), "column 'age' .* 'squares'"),
        (_with(0, squares=math.inf), "column 'age' .* 'squares'"),
        (_with(0, known=-1), "column 'age' .* 'known'"),
        (_with(0, known=3), "column 'age' .* more values than the 2 rows"),
        (_with(0, median="50"), "column 'age' .* 'median'"),
        (_with(0, extra=1), "column 'age' .* 'extra'"),
        (_with(1, true=5), "column 'smokes' .* more values"),
        (_with(1, known=True), "column 'smokes' .* 'known'"),
        (_with(2, seen=[True]), "column 'ward' .* 3 levels, not 1"),
        ({**_with(0), "columns": _with(0)["columns"][:2]}, "3 columns, not 2"),
        ({**_with(0), "columns": [1, 2, 3]}, "column 'age'"),
        ({**_with(0), "label": None}, "one value of the label"),
        ({**_with(0), "label": {"known": 1, "mean": 0.0, "squares": 0.0}}, "one value of the label"),
        ({**_with(0), "rows": 0}, "'rows'"),
        ({**_with(0), "format": 9}, "'format'"),
        ({**_with(0), "kind": "words"}, "'kind'"),
        ({}, "'kind' field required"),
        ("old", "a table"),
    ],
)
def test_statistics_that_no_rows_could_have_told_are_refused(told: Any, phrase: str) -> None:
    with pytest.raises(PreparationError, match=phrase) as caught:
        PREPARATION.merge([tell([(30.0, 1.0, 0.0, 2.0)]), told])
    assert "\n" not in str(caught.value)


def test_words_of_several_domains_are_merged_and_a_wrong_number_is_refused() -> None:
    preparation = WordPreparation(("a", "b", "c"))
    x = torch.tensor([[255, 0, 0], [0, 0, 255]], dtype=torch.uint8)
    y = torch.zeros(2, dtype=torch.int64)
    told = [preparation.statistics(x[:1], y[:1]), preparation.statistics(x[1:], y[1:])]
    expected = FittedWords(("a", "b", "c"), (True, False, True))
    assert preparation.merge(json.loads(json.dumps(told))) == expected
    assert preparation.fit([(Domain("d", x, y), torch.tensor([1, 0]))]) == expected
    with pytest.raises(PreparationError, match="3 words, not 2"):
        preparation.merge([{**told[0], "seen": [True, False]}])
    with pytest.raises(PreparationError, match="'seen'"):
        preparation.merge([{**told[0], "seen": [1, 0, 0]}])


def test_fitting_in_one_go_is_merging_each_domain() -> None:
    rows: Rows = [(30.0, 1.0, 0.0, 2.0), (50.0, 0.0, 2.0, 4.0), (NAN, 1.0, 0.0, 6.0), (7.5, 1.0, 1.0, 1.0)]
    table = torch.tensor(rows, dtype=torch.float64)
    one = Domain("one", table[:2, :3], table[:2, 3].float())
    two = Domain("two", table[2:, :3], table[2:, 3].float())
    fitted = PREPARATION.fit([(one, torch.arange(2)), (two, torch.arange(2))])
    assert isinstance(fitted, FittedTable)
    assert fitted == PREPARATION.merge([tell(rows[:2]), tell(rows[2:])])
