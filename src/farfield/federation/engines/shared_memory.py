"""Named tensors and scalars through shared memory: how a message reaches a worker process without being copied twice.

An arena is anonymous memory that parent and forked child both see. A message is a small JSON header plus tensor bytes
in the arena; a tensor that does not fit follows the header through the pipe. Nothing is pickled.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from farfield.federation.reply_checks import STATE_DTYPES

ALIGNMENT = 64
DTYPES = {str(d): d for d in STATE_DTYPES}


class Arena:
    def __init__(self, capacity: int) -> None:
        self._memory = mmap.mmap(-1, max(capacity, ALIGNMENT))
        self.capacity = capacity

    def view(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)


def send(connection: Connection, arena: Arena, header: dict[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the groups of named values into the arena and send the header that tells where they are."""
    described: dict[str, list[list[Any]]] = {}
    overflow: list[Tensor] = []
    offset = 0
    for group, named in groups.items():
        entries = described.setdefault(group, [])
        for name, value in named.items():
            if not isinstance(value, Tensor):
                entries.append([name, value])
                continue
            value = value.detach().contiguous()
            place = -1
            if value.nbytes == 0:
                place = 0
            elif offset + value.nbytes <= arena.capacity:
                arena.view(value.dtype, tuple(value.shape), offset).copy_(value)
                place = offset
                offset += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
            else:
                overflow.append(value)
            entries.append([name, str(value.dtype), list(value.shape), place])
    connection.send_bytes(json.dumps({**header, "groups": described}).encode())
    for tensor in overflow:
        connection.send_bytes(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def receive(connection: Connection, arena: Arena) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The header and the groups of named values, copied out of the arena."""
    header = json.loads(connection.recv_bytes())
    groups: dict[str, dict[str, Any]] = {}
    for group, entries in header.pop("groups").items():
        named = groups.setdefault(group, {})
        for entry in entries:
            if len(entry) == 2:
                named[entry[0]] = entry[1]
                continue
            name, dtype, shape, place = entry
            if place >= 0:
                named[name] = arena.view(DTYPES[dtype], tuple(shape), place).clone()
            else:
                raw = bytearray(connection.recv_bytes())
                named[name] = torch.frombuffer(raw, dtype=DTYPES[dtype]).view(shape)
    return header, groups
