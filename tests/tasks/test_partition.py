from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from farfield.reproducibility.randomness import generator
from farfield.tasks.clients.partition import Clients, Partition, Shard, make_clients
from farfield.tasks.clients.row_shares import split_rows
from farfield.tasks.clients.validation import split_domain
from farfield.tasks.task import Domain, TaskKind


def domain(name: str, rows: int, classes: int = 10) -> Domain:
    """Rows that carry their own number, labelled 0, 1, ... in turn."""
    return Domain(name, torch.arange(rows, dtype=torch.float32).unsqueeze(1), torch.arange(rows) % classes)


def domains(*sizes: int, classes: int = 10) -> list[Domain]:
    return [domain(chr(ord("a") + i), rows, classes) for i, rows in enumerate(sizes)]


def make(
    chosen: Sequence[Domain],
    partition: str,
    clients: int | None = None,
    *,
    validation: float = 0.1,
    seed: int = 0,
    kind: TaskKind = "classification",
) -> Clients:
    return make_clients(
        chosen, partition=Partition.parse(partition), clients=clients, validation=validation, seed=seed, kind=kind
    )


def rows_of(shard: Shard, split: str) -> list[tuple[str, int]]:
    return [(name, row) for name, rows in getattr(shard, split) for row in rows.tolist()]


def contents(clients: Clients) -> list[tuple[str, list[tuple[str, int]], list[tuple[str, int]]]]:
    return [(shard.name, rows_of(shard, "train"), rows_of(shard, "validation")) for shard in clients]


def labels(shard: Shard, chosen: Sequence[Domain]) -> Tensor:
    by_name = {d.name: d for d in chosen}
    return torch.cat([by_name[name].y[rows] for name, rows in shard.train])


EVERY_PARTITION = [
    ("domain", None),
    ("split", 11),
    ("split-published", 11),
    ("dirichlet:0.1", 12),
    ("dirichlet:5", 11),
    ("sub-environments", 2),
    ("iid", 7),
    ("iid", 2),
    ("pooled", None),
]


@pytest.mark.parametrize(("partition", "clients"), EVERY_PARTITION)
def test_every_row_goes_to_one_client_and_one_split(partition: str, clients: int | None) -> None:
    chosen = domains(200, 90, 41)
    made = make(chosen, partition, clients)
    train = [row for shard in made for row in rows_of(shard, "train")]
    validation = [row for shard in made for row in rows_of(shard, "validation")]
    assert (len(train), len(validation)) == (180 + 81 + 37, 20 + 9 + 4)
    everything = {(d.name, row) for d in chosen for row in range(len(d))}
    assert len(set(train) | set(validation)) == len(everything) == len(train) + len(validation)
    assert set(train) | set(validation) == everything
    assert min(shard.train_size for shard in made) >= 1


@pytest.mark.parametrize(("partition", "clients"), EVERY_PARTITION)
def test_the_same_seed_gives_the_same_clients_and_another_seed_others(partition: str, clients: int | None) -> None:
    chosen = domains(200, 90, 41)
    assert contents(make(chosen, partition, clients)) == contents(make(chosen, partition, clients))
    assert contents(make(chosen, partition, clients)) != contents(make(chosen, partition, clients, seed=1))


@pytest.mark.parametrize(("partition", "clients"), EVERY_PARTITION)
def test_rows_ascend_and_sizes_are_known_without_shards(partition: str, clients: int | None) -> None:
    made = make(domains(200, 90, 41), partition, clients)
    for shard in made:
        for _, rows in (*shard.train, *shard.validation):
            assert rows.dtype == torch.int64
            assert len(rows) > 0
            assert bool((rows.diff() > 0).all())
    assert made.train_sizes.tolist() == [shard.train_size for shard in made]
    assert made.validation_sizes.tolist() == [shard.validation_size for shard in made]
    assert [made.domain_of(i) for i in range(len(made))] == [shard.domain for shard in made]


def test_validation_rows_depend_on_neither_partition_nor_clients_nor_other_domains() -> None:
    chosen = domains(200, 90, 41)

    def validation_of_b(made: Clients) -> set[int]:
        return {row for shard in made for name, row in rows_of(shard, "validation") if name == "b"}

    expected = validation_of_b(make(chosen, "domain"))
    assert len(expected) == 9
    for partition, clients in EVERY_PARTITION:
        assert validation_of_b(make(chosen, partition, clients)) == expected
    assert validation_of_b(make(chosen[1:], "domain")) == expected
    assert validation_of_b(make(chosen[::-1], "split", 5)) == expected


def test_one_client_a_domain() -> None:
    made = make(domains(200, 90, 41), "domain")
    assert [(shard.client, shard.name, shard.domain) for shard in made] == [(0, "a", "a"), (1, "b", "b"), (2, "c", "c")]
    assert made.train_sizes.tolist() == [180, 81, 37]
    assert made.validation_sizes.tolist() == [20, 9, 4]


@pytest.mark.parametrize(
    ("sizes", "clients", "expected"),
    [
        ([1000, 400, 300], 7, [[225] * 4, [180] * 2, [270]]),
        ([1000, 400, 300], 3, [[900], [360], [270]]),
        ([500, 500, 500], 5, [[225] * 2, [225] * 2, [450]]),
        ([2048, 2344, 1670], 50, [[108] * 16 + [116], [111] * 18 + [112], [107] * 13 + [112]]),
        ([11667, 11667, 11667, 11666, 11666], 50, [[1050] * 9 + [1051]] * 3 + [[1049] * 9 + [1059]] * 2),
        ([103, 57, 29], 7, [[23, 23, 23, 24], [25, 27], [27]]),
    ],
)
def test_split_published_gives_the_sizes_of_fediir(sizes: list[int], clients: int, expected: list[list[int]]) -> None:
    """The entry `fediir_algorithm2_split` of the reference numbers, with a tenth held out."""
    made = make(domains(*sizes), "split-published", clients)
    assert made.train_sizes.tolist() == [size for part in expected for size in part]
    assert [made.domain_of(i) for i in range(clients)] == [
        name for name, part in zip("abcde", expected, strict=False) for _ in part
    ]
    assert int(made.validation_sizes.sum()) == sum(size // 10 for size in sizes)


def test_split_makes_the_sizes_in_a_domain_differ_by_at_most_one() -> None:
    assert sorted(make(domains(103, 57, 29), "split", 7).train_sizes.tolist()) == [23, 23, 23, 24, 26, 26, 27]
    many = make(domains(2000, 2000), "split", 2000).train_sizes
    assert (int(many.min()), int(many.max()), int(many.sum())) == (1, 2, 3600)


def test_split_shuffles_the_rows_of_a_domain() -> None:
    """Rows 0 to 999 in order would have given the first client rows of the first quarter only."""
    first = make(domains(1000), "split", 4)[0].train[0][1]
    assert int(first.min()) < 50
    assert int(first.max()) > 950
    assert 400 < float(first.double().mean()) < 600


def test_split_shares_the_validation_rows_of_a_domain_evenly() -> None:
    made = make(domains(1000, 400, 300), "split", 7)
    assert made.validation_sizes.tolist() == [25, 25, 25, 25, 20, 20, 30]
    assert [shard.name for shard in made] == ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1", "c-0"]
    assert {name for shard in made[:4] for name, _ in (*shard.train, *shard.validation)} == {"a"}


def test_as_many_clients_as_training_rows_get_one_row_each() -> None:
    """Ten training rows for ten clients: FedIIR's rounding down of 9.9 rows alone would leave nine of them empty."""
    made = make(domains(11), "split-published", 10)
    assert made.train_sizes.tolist() == [1] * 10
    assert sorted(made.validation_sizes.tolist()) == [0] * 9 + [1]
    for partition in ("split", "split-published", "dirichlet:0.01", "iid"):
        assert make(domains(101, 37), partition, 91 + 34).train_sizes.tolist() == [1] * (91 + 34)


def test_a_client_without_validation_rows_has_no_validation_segments() -> None:
    made = make(domains(11), "split", 10)
    empty = next(shard for shard in made if shard.validation_size == 0)
    assert empty.validation == ()
    assert empty.domain == "a"


def test_dirichlet_gives_each_domain_equally_many_clients_where_that_works_out() -> None:
    made = make(domains(1000, 400, 300), "dirichlet:1", 12)
    assert [made.domain_of(i) for i in range(12)] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    made = make(domains(1000, 400, 300), "dirichlet:1", 7)
    assert [made.domain_of(i) for i in range(7)] == ["a"] * 4 + ["b"] * 2 + ["c"]


@pytest.mark.parametrize(("beta", "low", "high"), [(0.05, 0.6, 1.0), (0.5, 0.25, 0.6), (1000.0, 0.1, 0.13)])
def test_a_small_beta_concentrates_classes_and_a_large_one_spreads_them(beta: float, low: float, high: float) -> None:
    """The share of a client's commonest class, over ten equally common classes: 0.1 is uniform, 1.0 is one class."""
    chosen = domains(4000, 4000)
    made = make(chosen, f"dirichlet:{beta}", 20)
    shares = [float(torch.bincount(labels(shard, chosen)).max() / shard.train_size) for shard in made]
    assert low <= sum(shares) / len(shares) <= high


def test_dirichlet_with_a_large_beta_gives_equal_sizes() -> None:
    made = make(domains(4000, 4000), "dirichlet:1e6", 20)
    assert int((made.train_sizes - 360).abs().max()) <= 10


def test_rounding_favours_no_client_where_a_class_has_fewer_rows_than_clients() -> None:
    """36 rows of each of ten classes for 60 clients, six each: not ten for some and none for the others."""
    sizes = make(domains(400), "dirichlet:1e6", 60).train_sizes
    assert float(sizes.double().std()) < 2.5


def test_a_clients_validation_rows_have_the_classes_of_its_training_rows() -> None:
    chosen = domains(4000)
    for shard in make(chosen, "dirichlet:0.05", 5, validation=0.5):
        train = torch.bincount(labels(shard, chosen), minlength=10)
        validation = torch.bincount(chosen[0].y[shard.validation[0][1]], minlength=10)
        # The shares of a class are rounded once for each split; a row that filled an empty client may be one more.
        assert int((train - validation).abs().max()) <= 2


@pytest.mark.parametrize("beta", [1e-8, 1e-3])
def test_a_tiny_beta_leaves_no_client_empty(beta: float) -> None:
    made = make(domains(300, 300), f"dirichlet:{beta}", 60)
    assert int(made.train_sizes.min()) == 1
    assert int(made.train_sizes.sum()) == 540


def test_iid_clients_mix_domains_and_differ_by_one_row_at_most() -> None:
    made = make(domains(200, 90, 41), "iid", 7)
    assert sorted(made.train_sizes.tolist()) == [42] * 3 + [43] * 4
    assert max(made.validation_sizes.tolist()) - min(made.validation_sizes.tolist()) <= 1
    assert [shard.name for shard in made][:2] == ["client-0", "client-1"]
    for shard in made:
        assert shard.domain == "mixed"
        assert [name for name, _ in shard.train] == ["a", "b", "c"]


def test_an_iid_client_is_mixed_even_when_its_rows_happen_to_be_of_one_domain() -> None:
    made = make(domains(20, 20), "iid", 36)
    assert {shard.domain for shard in made} == {"mixed"}
    assert {made.domain_of(i) for i in range(36)} == {"mixed"}


def test_pooled_is_one_client_with_everything() -> None:
    (only,) = make(domains(200, 90, 41), "pooled")
    assert (only.name, only.domain) == ("pooled", "mixed")
    assert [(name, len(rows)) for name, rows in only.train] == [("a", 180), ("b", 81), ("c", 37)]
    assert [(name, len(rows)) for name, rows in only.validation] == [("a", 20), ("b", 9), ("c", 4)]


def test_clients_are_a_sequence() -> None:
    made = make(domains(200, 90, 41), "split", 11)
    assert len(made) == 11
    assert (made[-1].client, made[-1].name) == (10, made[10].name)
    assert [shard.client for shard in made[2:5]] == [2, 3, 4]
    with pytest.raises(IndexError, match="no client 11 among 11"):
        made[11]
    assert repr(made) == "<11 clients, partition split, domains a, b, c>"


@pytest.mark.parametrize("partition", ["split", "dirichlet:0.3", "iid"])
def test_ten_thousand_clients_cost_their_rows_only(partition: str) -> None:
    chosen = domains(8000, 6000, 6000)
    make(chosen, partition, 10)  # imports and caches are not what is measured
    tracemalloc.start()
    made = make(chosen, partition, 10_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made) == 10_000
    # tracemalloc sees NumPy and Python, but no tensors: those are 20,000 rows and twice 10,001 offsets of 8 bytes.
    assert made.nbytes == 8 * (20_000 + 2 * 10_001)
    assert peak < 2_000_000
    assert made[9_999].train_size >= 1


def test_split_rows_keeps_the_share_of_every_class() -> None:
    y = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    train, validation = split_rows(y, 0.1, generator(0), "classification")
    assert torch.bincount(y[validation]).tolist() == [5, 3, 2]
    assert torch.bincount(y[train]).tolist() == [45, 27, 18]


def test_split_rows_gives_left_over_rows_to_the_largest_remainders() -> None:
    """A quarter of 26, 11 and 3 rows: 10 in all; 6.5, 2.75 and 0.75, so the second and third class round up."""
    y = torch.tensor([0] * 26 + [1] * 11 + [2] * 3)
    _, validation = split_rows(y, 0.25, generator(0), "classification")
    assert torch.bincount(y[validation]).tolist() == [6, 3, 1]


def test_a_class_with_one_row_stays_in_training() -> None:
    y = torch.tensor([0] * 95 + [1, 2, 3, 4, 5])
    train, validation = split_rows(y, 0.5, generator(0), "classification")
    assert len(validation) == 50
    assert torch.bincount(y[train]).tolist() == [45, 1, 1, 1, 1, 1]


def test_where_every_class_has_one_row_both_splits_still_get_rows() -> None:
    train, validation = split_rows(torch.arange(4), 0.5, generator(0), "classification")
    assert (len(train), len(validation)) == (2, 2)


@pytest.mark.parametrize(("rows", "fraction", "held"), [(100, 0.29, 29), (2, 0.01, 1), (2, 0.99, 1), (19, 0.1, 1)])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_validation_is_the_whole_part_of_the_fraction(rows: int, fraction: float, held: int, kind: TaskKind) -> None:
    y = torch.zeros(rows, dtype=torch.int64) if kind == "classification" else torch.rand(rows)
    train, validation = split_rows(y, fraction, generator(0), kind)
    assert (len(train), len(validation)) == (rows - held, held)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(rows))


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_validation_rows_are_drawn_at_random(kind: TaskKind) -> None:
    """Over many seeds each of ten equal rows is chosen about as often as the others."""
    y = torch.zeros(10, dtype=torch.int64) if kind == "classification" else torch.zeros(10)
    chosen = torch.cat([split_rows(y, 0.3, generator(seed), kind)[1] for seed in range(1000)])
    assert torch.bincount(chosen, minlength=10).sub(300).abs().max() < 60


@pytest.mark.parametrize(
    ("text", "kind", "beta"),
    [
        ("domain", "domain", None),
        ("split", "split", None),
        ("iid", "iid", None),
        ("pooled", "pooled", None),
        ("dirichlet:0.3", "dirichlet", 0.3),
    ],
)
def test_partitions_are_written_as_they_are_read(text: str, kind: str, beta: float | None) -> None:
    partition = Partition.parse(text)
    assert (partition.kind, partition.beta) == (kind, beta)
    assert str(partition) == text
    assert TypeAdapter(Partition).validate_python(text) == partition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet", "partition 'dirichlet' needs its parameter beta, as in 'dirichlet:0.3'"),
        ("dirichlet:", "partition 'dirichlet:' has '' where a number belongs, as in 'dirichlet:0.3'"),
        ("dirichlet:much", "partition 'dirichlet:much' has 'much' where a number belongs, as in 'dirichlet:0.3'"),
        ("dirichlet:0", "partition 'dirichlet' needs a positive beta, not 0.0"),
        ("dirichlet:nan", "partition 'dirichlet' needs a positive beta, not nan"),
        ("split:3", "partition 'split' takes no value, but got 3.0; only 'dirichlet' has one"),
        ("dirichlett:1", "unknown partition 'dirichlett'; did you mean 'dirichlet'?"),
        (
            "zzz",
            "unknown partition 'zzz'; the partitions are domain, split, split-published, dirichlet, sub-environments, "
            "iid, pooled",
        ),
    ],
)
def test_a_partition_that_cannot_be_read_is_answered_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Partition.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (
            "split",
            2,
            "2 clients are too few for 3 domains, because in partition 'split' a client has one domain; "
            "use at least 3, or the partition 'iid'",
        ),
        (
            "dirichlet:1",
            1,
            "1 clients are too few for 3 domains, because in partition 'dirichlet' a client has one domain; "
            "use at least 3, or the partition 'iid'",
        ),
        ("split", 299, "299 clients are too many for 298 training rows; use at most 298"),
        ("iid", 299, "299 clients are too many for 298 training rows; use at most 298"),
        ("iid", 0, "there must be at least 1 client, not 0"),
        (
            "dirichlet:1",
            120,
            "120 clients make 40 for a domain of 37 training rows; use at most 111",
        ),
        (
            "domain",
            7,
            "partition 'domain' makes one client for each of the 3 domains, not 7; "
            "leave the number of clients out, or use 'split'",
        ),
        ("pooled", 2, "partition 'pooled' puts all rows in 1 client, not 2; use 'iid' to share them out"),
    ],
)
def test_numbers_of_clients_that_cannot_work_are_refused(partition: str, clients: int, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(domains(200, 90, 41), partition, clients)
    assert str(caught.value) == message


@pytest.mark.parametrize("validation", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_validation_must_be_a_proper_fraction(validation: float) -> None:
    with pytest.raises(ValueError, match=f"the validation fraction must lie between 0 and 1, not be {validation};"):
        make(domains(20), "domain", validation=validation)


def test_a_domain_with_one_row_is_named() -> None:
    with pytest.raises(ValueError, match="domain 'b': 1 row cannot be split into training and validation rows"):
        make(domains(20, 1), "domain")


def test_label_skew_is_refused_for_regression() -> None:
    chosen = [Domain("a", torch.zeros(20, 1), torch.rand(20))]
    with pytest.raises(ValueError, match="'dirichlet' skews class labels, which a regression task lacks; use 'split'"):
        make(chosen, "dirichlet:1", 2, kind="regression")
    assert make(chosen, "split", 2, kind="regression").train_sizes.tolist() == [9, 9]


def test_without_domains_there_are_no_clients() -> None:
    with pytest.raises(ValueError, match="there are no source domains to make clients of"):
        make([], "domain")


def test_sub_environments_put_neighbouring_domains_into_one_client() -> None:
    chosen = domains(40, 20, 30, 10, 50)
    clients = make(chosen, "sub-environments", 2)
    assert [shard.name for shard in clients] == ["a+b+c", "d+e"]
    assert [shard.domain for shard in clients] == ["mixed", "mixed"]
    assert clients.train_sizes.tolist() == [36 + 18 + 27, 9 + 45]
    assert clients.validation_sizes.tolist() == [4 + 2 + 3, 1 + 5]
    assert torch.bincount(labels(clients[1], chosen), minlength=10).sum() == 54
    assert [name for name, _ in clients[0].train] == ["a", "b", "c"]


def test_sub_environments_refuse_more_clients_than_domains() -> None:
    with pytest.raises(ValueError, match="puts several of the 2 domains in a client, so 3 clients are too many"):
        make(domains(10, 10), "sub-environments", 3)


def test_algorithm_2_gives_more_clients_to_larger_domains_with_all_classes_each() -> None:
    chosen = domains(1000, 400, 300)
    clients = make(chosen, "split", 7)
    assert [clients.domain_of(c) for c in range(7)] == ["a"] * 4 + ["b"] * 2 + ["c"]
    assert clients.train_sizes.tolist() == [225] * 4 + [180] * 2 + [270]
    for shard in clients:
        histogram = torch.bincount(labels(shard, chosen), minlength=10)
        assert int(histogram.min()) > 0
    total = sum(torch.bincount(labels(shard, chosen), minlength=10) for shard in clients)
    assert torch.as_tensor(total).tolist() == [153] * 10


def test_a_domain_alone_is_split_as_among_the_others() -> None:
    three = domains(40, 17, 90, classes=3)
    for alone, shard in zip(three, make(three, "domain", validation=0.2, seed=7), strict=True):
        train, held = split_domain(alone, 0.2, 7, "classification")
        assert torch.equal(train, shard.train[0][1])
        assert torch.equal(held, shard.validation[0][1])
