"""Notes of one kind in one."""

from __future__ import annotations

from farfield.report.folded_notes import folded


def test_notes_that_differ_in_names_and_numbers_become_one() -> None:
    notes = [f"domain 'hospital {n}' has {n + 3} rows only" for n in range(60)]
    assert folded(["first", *notes, "last"]) == [
        "first",
        "domain 'hospital 0' has 3 rows only (the same, with other figures, of 'hospital 1', 'hospital 2', "
        "'hospital 3', 'hospital 4', 'hospital 5' and 54 more)",
        "last",
    ]


def test_few_notes_of_a_kind_and_different_ones_stay() -> None:
    notes = ["column 'a' is empty", "column 'b' is empty", "column 'c' is empty", "row 7 occurs twice"]
    assert folded(notes) == notes
    assert folded(["same", "same"]) == ["same"]
    assert folded([f"{n} rows occur twice" for n in range(5)]) == ["0 rows occur twice (and 4 more notes like this)"]
