import pytest

from farfield.math import order_of_clients, share_rows, split_domains

# Domain sizes, clients, clients per domain, and the published code's training rows per client after a 10 % hold-out.
GOLDEN = [
    ([1000, 400, 300], 7, [4, 2, 1], [[225] * 4, [180] * 2, [270]]),
    ([1000, 400, 300], 3, [1, 1, 1], [[900], [360], [270]]),
    ([500, 500, 500], 5, [2, 2, 1], [[225] * 2, [225] * 2, [450]]),
    ([2048, 2344, 1670], 50, [17, 19, 14], [[108] * 16 + [116], [111] * 18 + [112], [107] * 13 + [112]]),
    (
        [11667, 11667, 11667, 11666, 11666],
        50,
        [10] * 5,
        [[1050] * 9 + [1051]] * 3 + [[1049] * 9 + [1059]] * 2,
    ),
    ([103, 57, 29], 7, [4, 2, 1], [[23, 23, 23, 24], [25, 27], [27]]),
]


@pytest.mark.parametrize(("sizes", "clients", "counts", "shares"), GOLDEN)
def test_algorithm_2_and_the_published_shares(
    sizes: list[int], clients: int, counts: list[int], shares: list[list[int]]
) -> None:
    assert split_domains(sizes, clients) == counts
    assert split_domains([0.9 * size for size in sizes], clients) == counts
    for size, count, expected in zip(sizes, counts, shares, strict=True):
        assert share_rows(size - int(0.1 * size), count, nominal=0.9 * size) == expected


@pytest.mark.parametrize(
    ("sizes", "clients", "order"),
    [
        ([1000, 400, 300], 7, [0, 1, 2, 0, 0, 1, 0]),
        ([500, 500, 500], 5, [0, 1, 2, 0, 1]),
        ([103, 57, 29], 7, [0, 1, 2, 0, 1, 0, 0]),
    ],
)
def test_clients_come_in_the_papers_order_with_ties_to_the_lowest_index(
    sizes: list[int], clients: int, order: list[int]
) -> None:
    assert order_of_clients(sizes, clients) == order


def test_no_single_move_of_a_client_would_even_out_the_largest_share() -> None:
    sizes = [911, 407, 338, 96]
    counts = split_domains(sizes, 23)
    assert sum(counts) == 23
    largest = max(s / n for s, n in zip(sizes, counts, strict=True))
    for giver in range(4):
        for taker in range(4):
            moved = list(counts)
            moved[giver] -= 1
            moved[taker] += 1
            if giver != taker and moved[giver] > 0:
                assert max(s / n for s, n in zip(sizes, moved, strict=True)) >= largest


def test_rows_are_shared_whole_with_the_remainder_last() -> None:
    assert share_rows(1000, 4) == [250] * 4
    assert share_rows(10, 3) == [3, 3, 4]
    assert share_rows(7, 1) == [7]


def test_splits_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ValueError, match="2 clients cannot cover 3 domains"):
        split_domains([5, 5, 5], 2)
    with pytest.raises(ValueError, match="needs examples"):
        split_domains([5, 0], 2)
    with pytest.raises(ValueError, match="3 rows among 4 clients"):
        share_rows(3, 4)
    with pytest.raises(ValueError, match="among 0 clients"):
        share_rows(3, 0)
    with pytest.raises(ValueError, match="in parts of 6"):
        share_rows(10, 2, nominal=12.0)
