"""What a phase sees of a client: its rows, its batches, its random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from farfield.federation import Client, Rows
from farfield.tasks.task import Domain


def numbered(name: str, rows: int, start: int = 0) -> Domain:
    """Each row's x and y say which row it is."""
    numbers = torch.arange(start, start + rows)
    return Domain(name, torch.stack([numbers, -numbers], dim=1).float(), numbers)


def rows_of(*domains: Domain) -> Rows:
    return Rows({d.name: d for d in domains}, [(d.name, torch.arange(len(d))) for d in domains])


def client(rows: int = 23, **changed: object) -> Client:
    key = {"seed": 0, "round": 1, "name": "site", "phase": "train"} | changed
    return Client(id=0, domain="d", training=rows_of(numbered("d", rows)), validation=rows_of(), **key)  # type: ignore[arg-type]


def seen(batches: Sequence[tuple[Tensor, Tensor]]) -> list[int]:
    return torch.cat([y for _, y in batches]).tolist()


def test_taking_rows_of_several_domains_equals_indexing_their_concatenation() -> None:
    a, b, c = numbered("a", 5), numbered("b", 4, start=100), numbered("c", 6, start=200)
    segments = [("a", torch.tensor([4, 0, 2])), ("b", torch.tensor([1, 3])), ("c", torch.tensor([5, 2, 0, 1]))]
    rows = Rows({d.name: d for d in (a, b, c)}, segments)
    x = torch.cat([a.x[[4, 0, 2]], b.x[[1, 3]], c.x[[5, 2, 0, 1]]])
    y = torch.cat([a.y[[4, 0, 2]], b.y[[1, 3]], c.y[[5, 2, 0, 1]]])
    assert len(rows) == 9
    generator = torch.Generator().manual_seed(0)
    for index in (torch.arange(9), torch.randperm(9, generator=generator), torch.tensor([8, 8, 0, 3, 2, 4])):
        taken = rows.take(index)
        assert torch.equal(taken.x, x[index])
        assert torch.equal(taken.y, y[index])


def test_taking_no_rows_gives_an_empty_batch() -> None:
    taken = rows_of(numbered("a", 5), numbered("b", 4)).take(torch.empty(0, dtype=torch.int64))
    assert taken.x.shape == (0, 2)
    assert taken.y.shape == (0,)


def test_domains_without_rows_do_not_shift_the_others() -> None:
    a, b, c = numbered("a", 3), numbered("b", 3, start=10), numbered("c", 3, start=20)
    none = torch.empty(0, dtype=torch.int64)
    rows = Rows({d.name: d for d in (a, b, c)}, [("a", torch.tensor([1])), ("b", none), ("c", torch.tensor([0, 2]))])
    assert rows.take(torch.arange(3)).y.tolist() == [1, 20, 22]
    assert rows.rows_of("c").tolist() == [0, 2]
    assert rows.rows_of("b").tolist() == rows.rows_of("nowhere").tolist() == []


@pytest.mark.parametrize("domains", [1, 2])
def test_bytes_become_floats_between_zero_and_one(domains: int) -> None:
    images = [
        Domain(name, torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.arange(3)) for name in "ab"[:domains]
    ]
    taken = rows_of(*images).take(torch.arange(3 * domains))
    assert taken.x.dtype == torch.float32
    torch.testing.assert_close(taken.x, torch.tensor([[0.0], [0.2], [1.0]]).repeat(domains, 1))


def test_taking_rows_leaves_the_domain_alone() -> None:
    domain = numbered("a", 4)
    taken = rows_of(domain).take(torch.tensor([1, 2]))
    taken.x.fill_(99.0)
    assert domain.x[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_epoch_shows_every_row_once_and_keeps_the_last_short_batch() -> None:
    site = client(rows=23)
    batches = list(site.batches(5))
    assert [len(b.y) for b in batches] == [5, 5, 5, 5, 3]
    assert sorted(seen(batches)) == list(range(23))
    assert seen(batches) != list(range(23))
    assert all(torch.equal(b.x[:, 0], b.y.float()) for b in batches)
    assert (site.steps, site.examples) == (5, 23)


def test_every_epoch_shows_every_row_once_in_an_order_of_its_own() -> None:
    site = client(rows=23)
    order = seen(list(site.batches(5, epochs=3)))
    epochs = [order[i : i + 23] for i in (0, 23, 46)]
    assert [sorted(e) for e in epochs] == [list(range(23))] * 3
    assert len({tuple(e) for e in epochs}) == 3
    assert (site.steps, site.examples) == (15, 69)


@pytest.mark.parametrize("size", [0, 23, 1000])
def test_batch_size_zero_or_too_large_means_the_full_batch(size: int) -> None:
    site = client(rows=23)
    batches = list(site.batches(size, epochs=2))
    assert [sorted(b.y.tolist()) for b in batches] == [list(range(23))] * 2
    assert (site.steps, site.examples) == (2, 46)


@pytest.mark.parametrize(
    ("steps", "sizes"),
    [
        (1, [5]),
        (5, [5, 5, 5, 5, 3]),
        (7, [5, 5, 5, 5, 3, 5, 5]),
        (11, [5, 5, 5, 5, 3, 5, 5, 5, 5, 3, 5]),
    ],
)
def test_local_steps_are_exact_across_the_ends_of_epochs(steps: int, sizes: list[int]) -> None:
    site = client(rows=23)
    batches = list(site.batches(5, epochs=1, steps=steps))
    assert [len(b.y) for b in batches] == sizes
    assert (site.steps, site.examples) == (steps, sum(sizes))
    for start in range(0, steps, 5):
        epoch = seen(batches[start : start + 5])
        assert len(set(epoch)) == len(epoch)


def test_steps_and_epochs_walk_through_the_same_batches() -> None:
    by_epochs = seen(list(client().batches(5, epochs=2)))
    by_steps = seen(list(client().batches(5, steps=10)))
    assert by_steps == by_epochs


def test_batches_that_are_not_used_are_not_counted() -> None:
    site = client(rows=23)
    stream = site.batches(5)
    next(stream)
    next(stream)
    stream.close()
    assert (site.steps, site.examples) == (2, 10)


def test_batches_come_from_the_generator_of_that_purpose() -> None:
    order = torch.randperm(23, generator=client().generator("batches"))
    assert seen(list(client().batches(5))) == order.tolist()


def test_random_numbers_depend_on_seed_round_name_phase_and_purpose() -> None:
    def draw(purpose: str = "batches", **changed: object) -> tuple[float, ...]:
        return tuple(torch.rand(4, generator=client(**changed).generator(purpose)).tolist())

    draws = [
        draw(),
        draw(seed=1),
        draw(round=2),
        draw(name="other"),
        draw(phase="evaluate"),
        draw("mixup"),
    ]
    assert len(set(draws)) == len(draws)
    assert draw() == draws[0]


def test_random_numbers_do_not_depend_on_the_clients_number_or_the_global_seed() -> None:
    first, second = client(), client()
    second.id = 7
    torch.manual_seed(1)
    one = torch.rand(4, generator=first.generator("batches"))
    torch.manual_seed(2)
    assert torch.equal(torch.rand(4, generator=second.generator("batches")), one)


def test_a_sweep_reads_every_row_once_in_order() -> None:
    site = client(rows=23)
    batches = list(site.sweep(site.training, size=10))
    assert [len(b.y) for b in batches] == [8, 8, 7]  # about equal: nobody is left over alone
    assert seen(batches) == list(range(23))
    assert (site.steps, site.examples) == (0, 0)
    assert list(site.sweep(site.validation)) == []
