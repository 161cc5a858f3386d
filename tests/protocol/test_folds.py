"""Which domains are held out together."""

from __future__ import annotations

import pytest

from farfield.errors import UserError
from farfield.protocol.folds import deal, fold_name, held_out_folds, inner_units
from tests.toy import task

TOY = task(5).outline()


def test_single_domains_make_no_folds() -> None:
    assert held_out_folds(TOY, None) == (("a", "b", "c", "d", "e"), {})
    assert held_out_folds(TOY, ["all"]) == (("a", "b", "c", "d", "e"), {})
    assert held_out_folds(TOY, ["c", "a"]) == (("c", "a"), {})


@pytest.mark.parametrize("chosen", [["b+a", "d"], [("b", "a"), "d"]])
def test_a_group_is_typed_with_a_plus_or_given_as_a_list(chosen: list[str | tuple[str, ...]]) -> None:
    assert held_out_folds(TOY, chosen) == (("b", "a", "d"), {"b+a": ("b", "a"), "d": ("d",)})


def test_folds_have_about_as_many_domains_and_rows() -> None:
    rows = {"tiny": 1, "huge": 100, "large": 90, "middle": 50, "small": 10}
    # From the largest on, back and forth: huge 1, large 2, middle 2, small 1, tiny 1.
    assert deal(rows, 2) == [("tiny", "huge", "small"), ("large", "middle")]
    folds = deal({str(n): n * n for n in range(170)}, 5)
    assert sorted(map(len, folds)) == [34] * 5
    assert sorted(name for fold in folds for name in fold) == sorted(map(str, range(170)))
    sizes = [sum(int(name) ** 2 for name in fold) for fold in folds]
    assert max(sizes) / min(sizes) < 1.05


def test_as_many_folds_as_domains_is_leave_one_domain_out() -> None:
    assert held_out_folds(TOY, None, 5)[1] == {}


def test_nested_selection_holds_out_a_fold_or_a_domain_that_is_in_none() -> None:
    folds = {"a+b": ("a", "b"), "c": ("c",)}
    assert inner_units(TOY, folds, "c") == ["a+b", "d", "e"]
    assert inner_units(TOY, folds, "a+b") == ["c", "d", "e"]
    assert inner_units(TOY, {}, "a") == ["b", "c", "d", "e"]


def test_a_long_group_is_named_by_its_first_domain() -> None:
    assert fold_name([f"hospital {n}" for n in range(34)]) == "hospital 0 and 33 more"


@pytest.mark.parametrize(
    ("chosen", "count", "phrase"),
    [
        (["a+b", "b+c"], None, "domain 'b' is held out in two groups"),
        (["a+z"], None, "no domain 'z' to hold out"),
        (["a+b+c+d+e"], None, "nothing is left of task 'toy' to train on"),
        (["a+b", "c"], 2, "omit --folds"),
        (None, 1, "2 to 5 folds"),
        (None, 6, "2 to 5 folds"),
    ],
)
def test_folds_that_cannot_be_get_a_sentence(chosen: list[str] | None, count: int | None, phrase: str) -> None:
    with pytest.raises(UserError, match=phrase):
        held_out_folds(TOY, chosen, count)
