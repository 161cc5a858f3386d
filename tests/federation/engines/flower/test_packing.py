"""Tensors and scalars through Flower's records and back, and what is refused of what comes in."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from farfield.federation.engines.flower.packing import BadMessage, pack, pack_groups, packed_bytes, unpack
from farfield.federation.reply_checks import STATE_DTYPES, nbytes

DTYPES = sorted(STATE_DTYPES, key=str)


def same(a: Tensor, b: Tensor) -> bool:
    """To the bit: a NaN too."""
    flat = [t.contiguous().view(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


def some(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    bits = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed))
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 100
    return bits.to(dtype) if dtype in (torch.bool, torch.uint8) else numbers.to(dtype)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    ),
    st.dictionaries(st.text(min_size=1, max_size=8), st.one_of(st.floats(), st.integers(-(2**53), 2**53))),
    st.integers(0, 1000),
)
def test_what_is_packed_comes_out_the_same(shapes: dict[str, Any], scalars: dict[str, Any], seed: int) -> None:
    tensors = {name: some(dtype, tuple(shape), seed) for name, (dtype, shape) in shapes.items()}
    only = {name: value for name, value in scalars.items() if name not in tensors}
    header, groups = unpack(pack({"round": 3}, {"a": {**tensors, **only}, "b": {}}))
    assert header == {"round": 3}
    assert set(groups) == {"a", "b"}
    assert groups["b"] == {}
    assert set(groups["a"]) == {*tensors, *only}
    assert all(same(groups["a"][name], value) for name, value in tensors.items())
    assert all(repr(groups["a"][name]) == repr(value) for name, value in only.items())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_that_a_client_may_keep_can_be_sent(dtype: torch.dtype) -> None:
    value = some(dtype, (3, 2), 0)
    # An odd byte before it, and a view that is not contiguous.
    _, groups = unpack(pack({}, {"g": {"odd": torch.ones(1, dtype=torch.uint8), "v": value.t(), "one": value[0, 0]}}))
    assert same(groups["g"]["v"], value.t().contiguous())
    assert groups["g"]["one"].shape == ()


def test_values_that_are_no_numbers_keep_their_bits() -> None:
    value = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    assert same(unpack(pack({}, {"g": {"v": value}}))[1]["g"]["v"], value)


def test_what_comes_out_is_nobody_elses_memory() -> None:
    content = pack({}, {"g": {"v": torch.zeros(4)}})
    unpack(content)[1]["g"]["v"].fill_(7)
    assert torch.equal(unpack(content)[1]["g"]["v"], torch.zeros(4))


def test_what_goes_to_many_is_laid_out_once() -> None:
    broadcast = pack_groups({"model": {"parameters": torch.ones(1000)}})
    contents = [pack({"client": n}, broadcast, {"state": {"c": torch.full((2,), n)}}) for n in range(3)]
    laid = [content.array_records["tensors"]["0"].data for content in contents]
    assert laid[0] is laid[1] is laid[2]
    assert [int(unpack(content)[1]["state"]["c"][0]) for content in contents] == [0, 1, 2]
    assert all(torch.equal(unpack(c)[1]["model"]["parameters"], torch.ones(1000)) for c in contents)


@pytest.mark.parametrize(
    "named",
    [{}, {"x": 1.5}, {"x": torch.zeros(7), "y": 3}, {"x": torch.zeros(3, dtype=torch.int64), "b": torch.ones(5) > 0}],
)
def test_a_message_weighs_what_its_values_weigh(named: dict[str, Any]) -> None:
    assert packed_bytes(pack({"round": 1, "phase": "train"}, {"values": named})) == nbytes(named)


def damaged(described: Any, data: bytes = b"\0" * 8, scalars: dict[str, Any] | None = None) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(data),), stype="farfield.packed", data=data)
    return RecordDict(
        {
            "header": ConfigRecord({"tensors": json.dumps(described), "groups": ["g"], **(scalars or {})}),
            "tensors": ArrayRecord({"0": array}),
        }
    )


FLOATS = "torch.float32"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (damaged([[0, "g", "v", FLOATS, [3]]]), "should have 12 bytes, and 8 are left"),
        (damaged([[0, "g", "v", FLOATS, [1]]]), "4 bytes that belong to nothing"),
        (damaged([]), "8 bytes that belong to nothing"),
        (damaged([[0, "g", "v", "torch.complex64", [1]]]), "dtype torch.complex64"),
        (damaged([[0, "g", "v", "os.system", [1]]]), "dtype os.system"),
        (damaged([[0, "g", "v", FLOATS, [-1, -2]]]), "shape"),
        (damaged([[0, "g", "v", FLOATS, [2.0]]]), "shape"),
        (damaged([[0, "g", "v", FLOATS, [True, 2]]]), "shape"),
        (damaged([[0, "g", "v", FLOATS, [10**30]]]), "are left"),
        (damaged([[1, "g", "v", FLOATS, [2]]]), "0 are left"),
        (damaged([[0, "h", "v", FLOATS, [2]]]), "cannot be read"),
        (damaged([[0, "g", "v", FLOATS]]), "cannot be read"),
        (damaged([[0, "g", "v", FLOATS, [1]], [0, "g", "v", FLOATS, [1]]]), "twice"),
        (damaged([[0, "g", "v", FLOATS, [2]]], scalars={"g/v": 1.0}), "twice"),
        (damaged([[0, "g", "v", FLOATS, [2]]], scalars={"nowhere/v": 1.0}), "cannot be read"),
        (damaged({"0": 1}), "cannot be read"),
        (damaged(None), "cannot be read"),
        (RecordDict(), "cannot be read"),
        (RecordDict({"header": ConfigRecord({"tensors": "[", "groups": ["g"]})}), "cannot be read"),
    ],
)
def test_a_damaged_message_is_refused_with_its_fault(content: RecordDict, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        unpack(content)


@given(st.binary(max_size=64), st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=12))
def test_no_message_brings_the_reader_down(data: bytes, described: Any) -> None:
    with contextlib.suppress(BadMessage):
        unpack(damaged(described, data))


def test_a_message_is_two_records_whatever_is_in_it() -> None:
    """Flower makes a request of each record on each of six ways."""
    content = pack({"phase": "train"}, {"model": {"w": torch.ones(3)}, "shared": {"rate": 0.5}})
    assert sorted(content) == ["header", "tensors"]
    header, groups = unpack(content)
    assert header == {"phase": "train"}
    assert groups["shared"] == {"rate": 0.5}
    assert packed_bytes(content) == 12 + 8
