from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from farfield import task_from_arrays
from farfield.errors import UserError
from farfield.tasks.user_data import arrays

X = np.arange(24.0).reshape(8, 3)
Y = np.array([0, 1] * 4)


def test_rows_of_numbers_become_a_task_with_a_preparation() -> None:
    gap = X.copy()
    gap[0, 1] = np.nan
    task = task_from_arrays("mine", {"a": (gap, Y), "b": (X.tolist(), Y.tolist())}, classes=["no", "yes"])
    assert (task.kind, task.classes, task.domain_names) == ("classification", ("no", "yes"), ("a", "b"))
    assert task.model.input_shape == (4,)  # three numbers, and one "missing"
    assert task.preparation is not None
    prepared = task.preparation.fit([(task.domain("b"), torch.arange(8))]).apply(task.domain("b").x)
    torch.testing.assert_close(prepared.mean(dim=0), torch.zeros(4))


def test_real_labels_make_a_regression_and_whole_ones_name_their_classes() -> None:
    assert task_from_arrays("r", {"a": (X, Y * 0.5), "b": (X, Y * 0.5)}).kind == "regression"
    assert task_from_arrays("c", {"a": (X, Y + 1)}).classes == ("0", "1", "2")


def test_images_are_used_as_they_are() -> None:
    pixels = np.zeros((8, 3, 6, 6), dtype=np.uint8)
    task = task_from_arrays("i", {"a": (pixels, Y), "b": (pixels, Y)})
    assert task.preparation is None
    assert task.domains[0].x.dtype == torch.uint8
    assert (task.model.featurizer, task.model.input_shape) == ("convnet", (3, 6, 6))


@pytest.mark.parametrize(
    ("domains", "options", "phrase"),
    [
        ({}, {}, "a pair (x, y) for each domain, at least one"),
        ({"a": (X, Y[:3])}, {}, "domain 'a' has x of shape (8, 3) and y of shape (3,)"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, {}, "differ in shape"),
        ({"a": (X, Y), "b": (X, Y * 0.5)}, {}, "real in one domain and whole in another"),
        ({"a": (X, Y)}, {"classes": ["one"]}, "labels go from 0 to 1, but there are 1 classes"),
        ({"a": (X, Y - 1)}, {}, "labels go from -1 to 0"),
        ({"a": (X.astype(str), Y)}, {}, "both must hold numbers"),
        ({"a": (X, np.where(Y == 1, np.nan, 0.0))}, {}, "a label that is not finite or far too large, in row 2"),
    ],
)
def test_arrays_that_cannot_be_a_task_are_named(domains: object, options: dict[str, object], phrase: str) -> None:
    with pytest.raises(UserError) as caught:
        task_from_arrays("bad", domains, **options)  # type: ignore[arg-type]
    assert phrase in str(caught.value)


def different(rows: int, seed: int, shape: tuple[int, ...] = (3,), dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 250, (rows, *shape)).astype(dtype)


@pytest.mark.parametrize(("shape", "dtype"), [((3,), np.float64), ((1, 5, 5), np.uint8), ((2, 3, 3), np.float32)])
def test_rows_that_occur_twice_are_noted_across_domains_and_inside_them(shape: tuple[int, ...], dtype: type) -> None:
    a, b = different(8, 0, shape, dtype), different(8, 1, shape, dtype)
    assert task_from_arrays("t", {"a": (a, Y), "b": (b, Y)}).notes == ()
    b[4] = a[2]
    (across,) = task_from_arrays("t", {"a": (a, Y), "b": (b, Y)}).notes
    assert across.startswith("2 of 16 rows are the same in two or more domains (first row 3 of 'a')")
    b[4] = b[6]
    (inside,) = task_from_arrays("t", {"a": (a, Y), "b": (b, Y)}).notes
    assert inside.startswith("2 of 16 rows occur twice or more in their own domain (2 in 'b'; first row 5 of 'b')")
    b[5] = b[4]  # with another label
    assert task_from_arrays("t", {"a": (a, Y), "b": (b, Y)}).notes == (inside,)


def test_the_order_of_a_row_s_numbers_tells_rows_apart() -> None:
    rows = np.array([[1.0, 2.0, 4.0], [2.0, 1.0, 4.0], [4.0, 2.0, 1.0], [0.0, 3.0, 4.0]])
    assert task_from_arrays("t", {"a": (rows, np.array([0, 0, 0, 1]))}).notes == ()


def test_large_arrays_are_not_searched_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MOST_BYTES", 100)
    (note,) = task_from_arrays("t", {"a": (X, Y), "b": (X, Y)}).notes
    assert "were not searched for rows that occur twice" in note


def test_labels_may_be_the_names_of_classes() -> None:
    named = task_from_arrays("c", {"a": (X, np.array(["n", "y"])[Y]), "b": (X, ["y", "n"] * 4)})
    assert named.classes == ("n", "y")
    assert named.domain("b").y.tolist() == [1, 0] * 4
    given = task_from_arrays("c", {"a": (X, ["y", "n"] * 4)}, classes=["y", "n", "z"])
    assert (given.classes, given.domain("a").y.tolist()) == (("y", "n", "z"), [0, 1] * 4)
    with pytest.raises(UserError, match="the label 'w' in row 2, which is none of the classes y, n"):
        task_from_arrays("c", {"a": (X, ["y", "w"] * 4)}, classes=["y", "n"])


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(["n", "y"] * 4),
        pd.Series(["n", "y"] * 4).to_numpy(dtype=object),
        pd.Categorical(["n", "y"] * 4),
        np.array([b"n", b"y"] * 4),
        ("n", "y") * 4,
    ],
)
def test_names_of_classes_may_come_in_any_container(labels: Any) -> None:
    task = task_from_arrays("c", {"a": (X, labels)})
    assert (task.classes, task.domain("a").y.tolist()) == (("n", "y"), [0, 1] * 4)


@pytest.mark.parametrize("gap", [None, float("nan"), 3])
@pytest.mark.parametrize("kind", [list, pd.Series])
def test_a_label_that_is_no_name_among_names_is_refused_by_its_row(gap: object, kind: Any) -> None:
    with pytest.raises(UserError, match=r"domain 'a' has the label (None|nan|3) in row 3, where the name of a class"):
        task_from_arrays("c", {"a": (X, kind(["n", "y", gap, "y", "n", "y", "n", "y"]))})


def test_images_with_their_channels_last_are_asked_about() -> None:
    images = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
    y = np.array([0, 1, 0, 1])
    (note,) = task_from_arrays("i", {"a": (images, y)}).notes
    assert "read as 8 channels of 8 × 3" in note
    assert "x.transpose(0, 3, 1, 2)" in note
    assert task_from_arrays("i", {"a": (images.transpose(0, 3, 1, 2), y)}).notes == ()


def test_a_task_shows_no_rows_when_it_is_printed() -> None:
    shown = repr(task_from_arrays("mine", {"a": (X + 0.25, Y), "b": (X, Y)}))
    assert shown == "Task('mine', classification, 2 classes, domains: a (8), b (8))"


@pytest.mark.parametrize(
    ("domains", "sentence"),
    [
        ([X], "needs a dict with a pair"),
        ({"a": X}, "domain 'a' needs a pair"),
        ({"a": (X, Y, Y)}, "domain 'a' needs a pair"),
        ({1: (X, Y)}, "the domain 1 needs a text as its name"),
        ({"a": (X[:, :0], Y)}, "has x of shape"),
        ({"a": (X, Y * 10**9)}, "labels go up to 1000000000 in 8 rows: whole numbers are class numbers"),
    ],
)
def test_what_is_no_dict_of_pairs_is_a_sentence(domains: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        task_from_arrays("t", domains)


def test_a_class_that_nobody_has_is_named_and_one_named_twice_refused() -> None:
    (note,) = task_from_arrays("t", {"a": (X, Y + 1)}).notes
    assert note == "no row has the class 0: class numbers count from 0"
    with pytest.raises(UserError, match="a name stands there twice"):
        task_from_arrays("t", {"a": (X, Y)}, classes=["no", "no"])


def test_what_is_masked_is_missing_and_tensors_may_have_a_graph() -> None:
    masked = np.ma.masked_array(X, mask=X[2, 1] == X)
    task = task_from_arrays("t", {"a": (masked, Y)})
    assert torch.isnan(task.domain("a").x).nonzero().tolist() == [[2, 1]]
    grown = torch.from_numpy(X).requires_grad_() * 2
    assert torch.equal(
        task_from_arrays("t", {"a": (grown, torch.from_numpy(Y))}).domain("a").x, torch.from_numpy(X * 2)
    )


def test_a_label_that_is_masked_or_far_too_large_is_named_by_its_row() -> None:
    masked = np.ma.masked_array(Y, mask=np.arange(8) == 3)
    with pytest.raises(UserError, match="domain 'a' has no label in row 4, where it is masked"):
        task_from_arrays("t", {"a": (X, masked)})
    huge = np.where(np.arange(8) == 2, 1e300, 1.0)
    with pytest.raises(UserError, match="not finite or far too large, in row 3"):
        task_from_arrays("t", {"a": (X, huge)})


def test_rows_without_a_group_are_groups_of_their_own() -> None:
    group = {site: [None, float("nan"), None, "p", "p", "q", "r", "s"] for site in ("a", "b")}
    task = task_from_arrays("t", {"a": (X, Y), "b": (X + 0.5, Y)}, group=group)
    codes = torch.cat([domain.groups for domain in task.domains if domain.groups is not None])
    assert len(codes.unique()) == 2 * 3 + 4
    assert not any("'None'" in note for note in task.notes)
