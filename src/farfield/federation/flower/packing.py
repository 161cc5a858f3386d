"""Named tensors and scalars as Flower records: one packed array a message, scalars in a config record, no pickle.

Flower stores and sends every array of a record by itself, so a state of a hundred tensors costs a hundred requests;
packed into one it costs one. What is packed are the tensors' own bytes: a message weighs what its tensors weigh.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from farfield.federation.checks import STATE_DTYPES
from farfield.federation.federation import FederationError
from farfield.federation.phase import Named

_TENSORS, _SCALARS, _HEADER = "tensors", "scalars", "header"
_PACKED = "packed"
#: Flower asks what the bytes of an array are; these are tensors end to end, described in the header.
_STYPE = "farfield.packed"
_DTYPES = {str(dtype): dtype for dtype in STATE_DTYPES}

Groups = Mapping[str, Named]
Header = Mapping[str, str | int | float | bool]


class BadMessage(FederationError):
    """A message that does not hold what it says."""


def pack(header: Header, groups: Groups) -> RecordDict:
    """A message's content: `header` tells what it is about, each group holds named tensors and scalars."""
    described: list[list[Any]] = []
    scalars: dict[str, Any] = {}
    parts: list[bytes] = []
    for group, named in groups.items():
        for name, value in named.items():
            if not isinstance(value, Tensor):
                scalars[f"{group}/{name}"] = value
                continue
            described.append([group, name, str(value.dtype), list(value.shape)])
            parts.append(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    data = b"".join(parts)
    array = Array(dtype="uint8", shape=(len(data),), stype=_STYPE, data=data)
    return RecordDict(
        {
            _HEADER: ConfigRecord({**header, _TENSORS: json.dumps(described), "groups": list(groups)}),
            _SCALARS: ConfigRecord(scalars),
            _TENSORS: ArrayRecord({_PACKED: array} if data else {}),
        }
    )


def unpack(content: RecordDict) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The header and the groups. Raises BadMessage where sizes, types or names do not fit, before any use of it."""
    try:
        header = dict(content.config_records[_HEADER])
        described = json.loads(str(header.pop(_TENSORS)))
        groups: dict[str, dict[str, Any]] = {str(group): {} for group in header.pop("groups")}  # type: ignore[union-attr]
        for path, value in content.config_records[_SCALARS].items():
            group, _, name = path.partition("/")
            groups[group][name] = value
        arrays = content.array_records[_TENSORS]
        data = bytearray(arrays[_PACKED].data) if _PACKED in arrays else bytearray()
        start = 0
        for group, name, dtype, shape in described:
            kind = _DTYPES[dtype]
            if any(not isinstance(size, int) or size < 0 for size in shape):
                raise BadMessage(f"'{name}' has the shape {shape}")
            size = prod(shape) * kind.itemsize
            if start + size > len(data):
                raise BadMessage(f"'{name}' should have {size} bytes, and {len(data) - start} are left")
            groups[group][name] = (
                torch.frombuffer(data, dtype=kind, count=prod(shape), offset=start).view(shape).clone()
                if size
                else torch.empty(shape, dtype=kind)
            )
            start += size
        if start != len(data):
            raise BadMessage(f"there are {len(data) - start} bytes that belong to nothing")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BadMessage(f"it cannot be read ({type(error).__name__}: {error})") from error
    return header, groups


def packed_bytes(content: RecordDict) -> int:
    """What a message's tensors and scalars weigh on the wire."""
    tensors = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    return tensors + 8 * len(content.config_records.get(_SCALARS, {}))
