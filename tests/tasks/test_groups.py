"""Rows of a group are on one side of the validation split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import farfield as ff
from farfield.reproducibility.randomness import generator
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.clients.row_shares import split_rows
from farfield.tasks.clients.validation import split_groups
from farfield.tasks.task import Domain, TaskKind
from tests.tasks.tables import visits, write


def grouped(rows: int, groups: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.integers(0, 3, rows)), torch.from_numpy(draw.integers(0, groups, rows))


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.5, 0.9])
def test_no_group_is_on_both_sides_and_the_share_is_about_right(fraction: float, kind: TaskKind) -> None:
    y, groups = grouped(600, 150)
    for seed in range(5):
        train, validation = split_groups(y, groups, fraction, generator(seed), kind)
        assert sorted([*train.tolist(), *validation.tolist()]) == list(range(600))
        assert not set(groups[train].tolist()) & set(groups[validation].tolist())
        assert len(validation) == pytest.approx(600 * fraction, abs=6)
        if kind == "classification":
            shares = torch.bincount(y[validation]) / torch.bincount(y)
            assert shares.tolist() == pytest.approx([fraction] * 3, abs=0.03)


def test_other_seeds_draw_other_groups() -> None:
    y, groups = grouped(600, 150)
    drawn = {tuple(split_groups(y, groups, 0.1, generator(seed), "classification")[1].tolist()) for seed in range(5)}
    assert len(drawn) == 5


@pytest.mark.parametrize("fraction", [0.1, 0.9])
@pytest.mark.parametrize("sizes", [(50, 50), (1, 99), (30, 30, 40), (1, 1)])
def test_large_groups_leave_rows_on_both_sides(sizes: tuple[int, ...], fraction: float) -> None:
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    for seed in range(4):
        y = torch.arange(len(groups)) % 2
        train, validation = split_groups(y, groups, fraction, generator(seed), "classification")
        assert len(train)
        assert len(validation)
        assert not set(groups[train].tolist()) & set(groups[validation].tolist())


def test_one_group_alone_is_refused_with_the_domain() -> None:
    alone = Domain("north", torch.zeros(6, 1), torch.arange(6) % 2, groups=torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="domain 'north': all 6 rows are of one group"):
        make_clients([alone], partition=Partition(kind="domain"), seed=0, kind="classification")


def test_without_groups_the_split_is_what_it_was() -> None:
    y, _ = grouped(97, 5)
    plain = Domain("d", torch.zeros(97, 1), y)
    (shard,) = make_clients([plain], partition=Partition(kind="domain"), seed=3, kind="classification")
    _, expected = split_rows(y, 0.1, generator(3, "validation", "d"), "classification")
    assert shard.validation[0][1].tolist() == expected.tolist()


def test_groups_are_part_of_what_the_data_is() -> None:
    x = {"a": np.arange(20.0).reshape(10, 2), "b": np.arange(20.0, 40.0).reshape(10, 2)}
    pairs = {site: (rows, np.arange(10) % 2) for site, rows in x.items()}
    plain = ff.task_from_arrays("t", pairs)
    twos = ff.task_from_arrays("t", pairs, group={site: np.arange(10) // 2 for site in x})
    threes = ff.task_from_arrays("t", pairs, group={site: np.arange(10) // 3 for site in x})
    assert len({plain.data_hash, twos.data_hash, threes.data_hash}) == 3


def table(tmp_path: Path, patient: list[str | None], **options: str) -> ff.Task:
    frame = visits(60).assign(patient=patient)
    return ff.read_table(write(frame, tmp_path / "v.csv"), label="died", domain="hospital", **options)  # type: ignore[arg-type]


def test_a_column_of_a_table_groups_and_is_no_feature(tmp_path: Path) -> None:
    task = table(tmp_path, [f"p{i // 6}-{i % 3}" for i in range(60)], group="patient")
    assert task.preparation is not None
    assert "patient" not in [column.name for column in task.preparation.columns]  # type: ignore[attr-defined]
    for domain in task.domains:
        assert domain.groups is not None
        assert domain.groups.unique(return_counts=True)[1].tolist() == [2] * 10
    for shard in make_clients(task.domains, partition=Partition(kind="domain"), seed=0, kind="classification"):
        groups = task.domain(shard.name).groups
        assert groups is not None
        sides = [set(groups[part[0][1]].tolist()) for part in (shard.train, shard.validation)]
        assert not sides[0] & sides[1]
    assert not any("group" in note for note in task.notes)


def test_groups_across_domains_and_rows_without_one_are_noted(tmp_path: Path) -> None:
    # Rows go north, south, west in turn, so rows 1 and 2 are in two hospitals.
    patient: list[str | None] = [f"p{i // 6}-{i % 3}" for i in range(60)]
    patient[0] = patient[1] = "moved"
    patient[7] = None
    notes = table(tmp_path, patient, group="patient").notes
    assert "the group 'patient' is missing in row 8: each of these stands for itself" in notes
    (spans,) = [note for note in notes if "two or more domains" in note and "groups" in note]
    assert spans.startswith("1 of 32 groups of 'patient' have rows in two or more domains, the first 'moved' in 'nor")


def test_a_group_for_every_row_is_noted(tmp_path: Path) -> None:
    notes = table(tmp_path, [f"p{i}" for i in range(60)], group="patient").notes
    assert "the group 'patient' is another in every row, so it groups nothing" in notes


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"group": "patiend"}, "did you mean 'patient'?"),
        ({"group": "hospital"}, "cannot be the group and something else"),
    ],
)
def test_a_group_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, str], phrase: str) -> None:
    with pytest.raises(ff.UserError) as caught:
        table(tmp_path, ["p"] * 60, **options)
    assert phrase in str(caught.value)


def test_arrays_take_groups_by_domain() -> None:
    pairs = {site: (np.random.default_rng(i).normal(size=(10, 2)), np.arange(10) % 2) for i, site in enumerate("ab")}
    task = ff.task_from_arrays("t", pairs, group={"a": ["p", "q"] * 5, "b": ["q", "r"] * 5})
    first, second = (domain.groups for domain in task.domains)
    assert first is not None
    assert second is not None
    assert first[1] == second[0] != second[1]
    assert task.notes == (
        "1 of 3 groups of the arrays have rows in two or more domains, the first 'q' in 'a' and 'b': when one of these "
        "is held out, the group was among the sources",
    )
    with pytest.raises(ff.UserError, match="group has nothing for domain 'b'"):
        ff.task_from_arrays("t", pairs, group={"a": range(10)})
    with pytest.raises(ff.UserError, match="domain 'b' has 10 rows and groups of shape"):
        ff.task_from_arrays("t", pairs, group={"a": range(10), "b": range(9)})
