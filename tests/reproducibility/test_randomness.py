"""Of `farfield.reproducibility.randomness`, which partitions draw from."""

from __future__ import annotations

import pytest
import torch

from farfield.reproducibility.randomness import derive_seed, generator


def test_seeds_are_fixed_for_ever() -> None:
    """These numbers decide every split and shuffle; a change of them changes all results."""
    assert derive_seed() == 8238016292129134938
    assert derive_seed(0) == 5789868883982397445
    assert derive_seed(0, "validation", "a") == 3480339435468260082


def test_type_place_and_borders_of_the_parts_count() -> None:
    keys: list[tuple[int | str, ...]] = [
        (1, 2),
        (2, 1),
        (12,),
        ("1", 2),
        (1, "2"),
        ("12",),
        ("1", "2"),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("abc", ""),
        (-1, 2),
    ]
    assert len({derive_seed(*key) for key in keys}) == len(keys)


def test_seeds_fill_63_bits() -> None:
    seeds = [derive_seed(i) for i in range(2000)]
    assert len(set(seeds)) == 2000
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


def test_equal_keys_give_equal_streams_whatever_ran_before() -> None:
    first = torch.rand(5, generator=generator(7, "batches"))
    torch.rand(100, generator=generator(8, "batches"))
    assert torch.equal(first, torch.rand(5, generator=generator(7, "batches")))
    assert not torch.equal(first, torch.rand(5, generator=generator(8, "batches")))


def test_a_float_is_no_key() -> None:
    with pytest.raises(TypeError):
        derive_seed(0.5)  # type: ignore[arg-type]
