"""Who is drawn for a round, also when clients were removed from the run."""

from __future__ import annotations

from farfield.protocol.cohort import cohort


def test_without_a_size_everybody_takes_part_who_was_not_removed() -> None:
    assert cohort(0, 1, 4, None) == [0, 1, 2, 3]
    assert cohort(0, 1, 4, 4, {2}) == [0, 1, 3]
    assert cohort(0, 1, 4, None, {0, 3}) == [1, 2]


def test_those_who_are_left_fill_the_cohort_as_far_as_they_can() -> None:
    drawn = [cohort(7, round, 6, 3, {1, 4}) for round in range(1, 200)]
    assert all(len(of) == 3 and not {1, 4} & set(of) and of == sorted(set(of)) for of in drawn)
    counts = [sum(client in of for of in drawn) for client in range(6)]
    assert min(counts[client] for client in (0, 2, 3, 5)) > 0.6 * 199 * 3 / 4
    assert cohort(7, 1, 6, 3, {0, 1, 2, 3}) == [4, 5]


def test_a_draw_that_has_none_of_the_removed_clients_stays_the_same() -> None:
    for round in range(1, 100):
        before = cohort(3, round, 5, 2)
        removed = {client for client in range(5) if client not in before}
        for client in removed:
            assert cohort(3, round, 5, 2, {client}) == before
