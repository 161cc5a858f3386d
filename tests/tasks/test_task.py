"""A task's hash tells its data from any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from farfield.tasks import Task
from tests.toy import task


def changed(given: Task, what: str) -> Task:
    first = given.domains[0]
    if what == "examples":
        first = replace(first, x=first.x + 1e-3)
    elif what == "labels":
        first = replace(first, y=first.y.flip(0))
    elif what == "split":
        first = replace(first, validation=torch.arange(3))
    elif what == "name":
        first = replace(first, name="another")
    else:
        return replace(given, classes=(*given.classes[1:], given.classes[0]))
    return replace(given, domains=(first, *given.domains[1:]))


@pytest.mark.parametrize("what", ["examples", "labels", "split", "name", "classes"])
def test_any_change_of_the_data_changes_the_hash(what: str) -> None:
    assert changed(task(), what).data_hash != task().data_hash
    assert task().data_hash == task().data_hash


@pytest.mark.parametrize("what", ["labels", "split", "name", "classes"])
def test_labels_and_splits_count_also_where_a_loader_vouches_for_the_examples(what: str) -> None:
    vouched = replace(task(), fingerprint="features of something")
    assert changed(vouched, what).data_hash != vouched.data_hash
    assert replace(vouched, fingerprint="features of something else").data_hash != vouched.data_hash
