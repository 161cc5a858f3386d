"""Named values through shared memory and a pipe, bit for bit."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.federation.engines.shared_memory import ALIGNMENT, Arena, receive, send

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def passed(groups: Mapping[str, Mapping[str, Any]], capacity: int, header: dict[str, Any] | None = None) -> Any:
    """What comes out at the other end. The sender is a thread, because a full pipe blocks it."""
    arena = Arena(capacity)
    near, far = Pipe()
    sender = threading.Thread(target=send, args=(near, arena, header or {}, groups), daemon=True)
    sender.start()
    try:
        received = receive(far, arena)
        sender.join(timeout=10)
        assert not sender.is_alive()
        assert not far.poll()  # nothing is left in the pipe for the next message to stumble over
        return received
    finally:
        near.close()
        far.close()


def tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 250, shape, generator=generator, dtype=dtype)


def assert_same(got: Tensor, sent: Tensor) -> None:
    assert got.dtype == sent.dtype
    assert got.shape == sent.shape
    assert got.contiguous().numpy().tobytes() == sent.detach().contiguous().numpy().tobytes()


@every_dtype
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (4, 0, 2)], ids=str)
@pytest.mark.parametrize("capacity", [1 << 16, 0], ids=["in the arena", "through the pipe"])
def test_a_tensor_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...], capacity: int) -> None:
    sent = tensor(shape, dtype)
    _, groups = passed({"values": {"x": sent}}, capacity)
    assert list(groups) == ["values"]
    assert_same(groups["values"]["x"], sent)


@pytest.mark.parametrize("capacity", [1 << 16, 0], ids=["in the arena", "through the pipe"])
def test_numbers_that_are_not_finite_come_back_as_they_are(capacity: int) -> None:
    sent = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.4e38])
    _, groups = passed({"values": {"x": sent}}, capacity)
    assert_same(groups["values"]["x"], sent)


def test_tensors_larger_than_the_arena_follow_through_the_pipe_in_order() -> None:
    sent = {
        "small": tensor((10,), torch.float32, 1),
        "large": tensor((100_000,), torch.float32, 2),
        "fits": tensor((20,), torch.int64, 3),
        "wide": tensor((70_000,), torch.float64, 4),
        "last": tensor((5,), torch.uint8, 5),
    }
    _, groups = passed({"values": sent}, capacity=1024)
    assert list(groups["values"]) == list(sent)
    for name, value in sent.items():
        assert_same(groups["values"][name], value)


def test_a_full_arena_sends_what_is_left_through_the_pipe() -> None:
    # Four times 64 bytes fill it to the last byte; the fifth has no room.
    sent = {f"x{i}": tensor((16,), torch.float32, i) for i in range(5)}
    _, groups = passed({"values": sent}, capacity=4 * ALIGNMENT)
    for name, value in sent.items():
        assert_same(groups["values"][name], value)


def test_tensors_do_not_run_into_each_other() -> None:
    sent = {f"x{n}": tensor((n,), torch.uint8, n) for n in range(1, 130)}
    _, groups = passed({"values": sent}, capacity=1 << 16)
    for name, value in sent.items():
        assert_same(groups["values"][name], value)


def test_numbers_keep_their_value_and_their_kind() -> None:
    sent = {"one": 1, "half": 0.5, "tiny": 5e-324, "third": 1 / 3, "big": 2**62, "minus": -0.0}
    _, groups = passed({"values": sent, "more": {"inf": math.inf, "ninf": -math.inf, "nan": math.nan}}, capacity=64)
    assert groups["values"] == sent
    assert {n: type(v) for n, v in groups["values"].items()} == {n: type(v) for n, v in sent.items()}
    assert math.copysign(1.0, groups["values"]["minus"]) == -1.0
    assert groups["more"]["inf"] == math.inf
    assert groups["more"]["ninf"] == -math.inf
    assert math.isnan(groups["more"]["nan"])


def test_many_groups_come_back_under_their_names_with_the_header() -> None:
    sent = {f"group {i}": {f"x{j}": tensor((i + j,), DTYPES[j], i) for j in range(4)} for i in range(50)}
    header, groups = passed({**sent, "empty": {}}, 1 << 12, {"phase": "train", "client": 3, "problem": None})
    assert header == {"phase": "train", "client": 3, "problem": None}
    assert list(groups) == [*sent, "empty"]
    assert groups["empty"] == {}
    for group, named in sent.items():
        for name, value in named.items():
            assert_same(groups[group][name], value)


@pytest.mark.parametrize("capacity", [1 << 16, 0], ids=["in the arena", "through the pipe"])
def test_views_and_tensors_with_a_graph_are_sent_as_plain_numbers(capacity: int) -> None:
    transposed = tensor((3, 5), torch.float32).T
    with_graph = (torch.ones(3, requires_grad=True) * 2).expand(2, 3)
    _, groups = passed({"values": {"t": transposed, "g": with_graph}}, capacity)
    assert_same(groups["values"]["t"], transposed)
    assert_same(groups["values"]["g"], with_graph)
    assert not groups["values"]["g"].requires_grad


def test_what_was_received_stays_when_the_arena_is_used_again() -> None:
    arena = Arena(1024)
    near, far = Pipe()
    send(near, arena, {}, {"values": {"x": torch.ones(8)}})
    _, first = receive(far, arena)
    send(near, arena, {}, {"values": {"x": torch.zeros(8)}})
    receive(far, arena)
    assert first["values"]["x"].tolist() == [1.0] * 8
