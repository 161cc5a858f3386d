"""A part of a task has the shares of domains and classes of the whole, whole groups, and says that it is a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farfield.errors import UserError
from farfield.tasks.open_task import open_task
from farfield.tasks.part_of_rows import part_of
from farfield.tasks.task import Task
from farfield.tasks.user_data.arrays import task_from_arrays
from farfield.tasks.user_data.table import load_table
from tests.tasks.tables import visits, write


def made(sizes: Mapping[str, int], group: Mapping[str, Any] | None = None) -> Task:
    """Every tenth row is of class 1; a row's only number is its place in its domain."""
    parts = {
        name: (np.arange(n)[:, None].astype(float), (np.arange(n) % 10 == 0).astype(int)) for name, n in sizes.items()
    }
    return task_from_arrays("big", parts, group=group)


def test_domains_and_classes_keep_their_shares() -> None:
    task = made({"a": 1000, "b": 500, "c": 12})
    part = part_of(task, 300)
    assert [len(domain) for domain in part.domains] == [193, 97, 10]  # 10 at least, and 290 by 2 : 1
    for domain in part.domains[:2]:
        assert int(domain.y.sum()) == pytest.approx(0.1 * len(domain), abs=1)
    assert int(part.domain("c").y.sum()) in (1, 2)
    assert part.name == "big (300 of 1512 rows)"
    assert part.notes[0].startswith("this is a quick look at 300 of 1,512 rows, drawn by domain and class (--rows 300)")
    assert part.data_hash != task.data_hash


def test_it_is_always_the_same_part_in_the_order_of_the_rows() -> None:
    one, other = (part_of(made({"a": 200, "b": 100}), 90) for _ in range(2))
    for a, b in zip(one.domains, other.domains, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.x[:, 0], a.x[:, 0].sort().values)
        assert torch.equal(a.y, (a.x[:, 0] % 10 == 0).long())


def test_groups_stay_whole() -> None:
    whole = made({"a": 300, "b": 300}, group={name: np.arange(300) // 3 for name in "ab"})
    for domain in part_of(whole, 120).domains:
        assert domain.groups is not None
        assert set(torch.unique(domain.groups, return_counts=True)[1].tolist()) == {3}  # type: ignore[no-untyped-call]
        assert len(domain) == pytest.approx(60, abs=6)


def test_official_validation_rows_are_found_again() -> None:
    task = made({"a": 200, "b": 200})
    held = tuple(replace(domain, validation=torch.arange(0, 200, 4)) for domain in task.domains)
    for domain in part_of(replace(task, domains=held), 100).domains:
        assert domain.validation is not None
        places = domain.x[domain.validation, 0]
        assert (places % 4 == 0).all()
        assert len(domain.validation) == pytest.approx(len(domain) / 4, abs=2)


def test_a_table_and_a_number_to_predict_can_be_cut(tmp_path: Path) -> None:
    task = open_task(load_table(write(visits(), tmp_path / "t.csv"), label="died", domain="hospital"), rows=33)
    assert sum(map(len, task.domains)) == 33
    assert all(domain.cells is not None and len(domain.cells) == len(domain) for domain in task.domains)
    assert task.preparation is not None
    assert task.preparation.of_sources(task.domains).examples(task.domains[0]).shape[0] == len(task.domains[0])
    numbers = task_from_arrays("r", {name: (np.ones((50, 1)), np.linspace(0, 1, 50)) for name in "ab"})
    assert sum(map(len, part_of(numbers, 30).domains)) == 30


def test_too_few_rows_are_refused_and_too_many_take_all() -> None:
    with pytest.raises(UserError, match="--rows 19 is too few for the 2 domains of task 'big': give at least 20"):
        part_of(made({"a": 100, "b": 100}), 19)
    everything = part_of(made({"a": 100, "b": 100}), 200)
    assert (everything.name, len(everything.domains[0])) == ("big", 100)
    assert everything.notes[0] == "--rows 200 takes all 200 rows of task 'big'"
