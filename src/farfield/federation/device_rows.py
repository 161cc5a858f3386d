"""Rows on a GPU: tensors that fit are copied to its memory once; of the others, each batch is copied when it is read.

Row numbers are always drawn and counted on the CPU, so that a seed draws the same rows whatever computes.
"""

from __future__ import annotations

import contextlib
from weakref import ref

import torch
from torch import Tensor

#: The share of a GPU's memory that all rows together may take, of what was free when the first were read. Models need
#: the rest.
SHARE_OF_FREE = 0.5


class DeviceRows:
    """The copies that one process holds on one device. A copy goes when its tensor on the CPU does."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        #: By the id of a tensor on the CPU: the tensor while it lives, and its copy. None where it does not fit: free
        #: memory is not asked for at each batch.
        self._copies: dict[int, tuple[ref[Tensor], Tensor | None]] = {}
        #: The bytes that copies may still take; asked for once, because what models take later is theirs.
        self._room: float | None = None

    def read(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Return these rows of a tensor that is on the CPU, on the device."""
        copy = self._copy_of(tensor)
        if copy is None:
            return tensor[rows].to(self._device)
        return copy[rows.to(self._device)]

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the device has a copy of this tensor."""
        return self._copies.get(id(tensor), (None, None))[1] is not None

    def _copy_of(self, tensor: Tensor) -> Tensor | None:
        key = id(tensor)
        if key not in self._copies:
            if self._room is None:
                self._room = SHARE_OF_FREE * free_memory(self._device)
            copy = None
            if tensor.nbytes <= self._room:
                # Another process may have taken what was free.
                with contextlib.suppress(torch.OutOfMemoryError):
                    copy = tensor.to(self._device)
                    self._room -= tensor.nbytes
            self._copies[key] = ref(tensor, lambda _: self._forget(key)), copy
        return self._copies[key][1]

    def _forget(self, key: int) -> None:
        _, copy = self._copies.pop(key)
        if copy is not None and self._room is not None:
            self._room += copy.nbytes


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a GPU now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())


_ROWS: dict[torch.device, DeviceRows] = {}


def device_rows(device: torch.device) -> DeviceRows:
    """Return what this process holds on a device, for all its runs."""
    return _ROWS.setdefault(device, DeviceRows(device))
