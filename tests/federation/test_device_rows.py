"""Rows on a GPU: how much of its memory they take, and that it is given back. The device here keeps no numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from farfield.federation import device_rows
from farfield.federation.device_rows import DeviceRows

ROWS = torch.tensor([0, 2])


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> DeviceRows:
    """Room for 500 bytes of rows, on a device that says the same however much it holds."""
    monkeypatch.setattr(device_rows, "free_memory", lambda device: 1000)
    return DeviceRows(torch.device("meta"))


def of_200_bytes() -> Tensor:
    return torch.arange(50, dtype=torch.float32)


def test_all_rows_together_take_half_of_the_free_memory(rows: DeviceRows) -> None:
    tensors = [of_200_bytes() for _ in range(4)]
    assert all(rows.read(tensor, ROWS).shape == (2,) for tensor in tensors)
    assert [rows.holds(tensor) for tensor in tensors] == [True, True, False, False]


def test_room_of_rows_that_are_gone_is_used_again(rows: DeviceRows) -> None:
    first, second = of_200_bytes(), of_200_bytes()
    for tensor in (first, second):
        rows.read(tensor, ROWS)
    del first, tensor
    third, fourth = of_200_bytes(), of_200_bytes()
    for tensor in (third, fourth):
        rows.read(tensor, ROWS)
    assert [rows.holds(of) for of in (second, third, fourth)] == [True, True, False]


def test_memory_that_fills_up_in_between_means_streaming(rows: DeviceRows) -> None:
    class Full(Tensor):
        def to(self, *_: object, **__: object) -> Tensor:  # type: ignore[override]
            raise torch.OutOfMemoryError("CUDA out of memory")

    full = of_200_bytes().as_subclass(Full)
    with pytest.raises(torch.OutOfMemoryError):
        rows.read(full, ROWS)  # the batch itself does not fit either
    assert not rows.holds(full)
    others = [of_200_bytes(), of_200_bytes()]
    for tensor in others:
        rows.read(tensor, ROWS)
    assert all(map(rows.holds, others))  # what was not copied takes no room
