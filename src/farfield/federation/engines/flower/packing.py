"""Named tensors and scalars as Flower records: packed arrays, scalars in a config record, no pickle.

Flower stores and sends every array of a record by itself, so a state of a hundred tensors costs a hundred requests;
packed into one array it costs one. The array holds the bytes of the tensors and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from farfield.federation.federation import FederationError
from farfield.federation.phase import Named
from farfield.federation.reply_checks import STATE_DTYPES

_TENSORS, _HEADER, _GROUPS = "tensors", "header", "groups"
#: Flower asks what the bytes of an array are; these are tensors end to end, described in the header.
_STYPE = "farfield.packed"
_DTYPES = {str(dtype): dtype for dtype in STATE_DTYPES}

Groups = Mapping[str, Named]
Header = Mapping[str, str | int | float | bool]


class BadMessage(FederationError):
    """A message whose content does not fit its description."""


@dataclass(frozen=True)
class PackedGroups:
    """Groups of named tensors and scalars, ready for any number of messages without another copy."""

    described: tuple[tuple[str, str, str, tuple[int, ...]], ...]
    scalars: Mapping[str, Any]
    groups: tuple[str, ...]
    array: Array | None


def pack_groups(groups: Groups) -> PackedGroups:
    """Lay the tensors of all groups end to end in one array."""
    described: list[tuple[str, str, str, tuple[int, ...]]] = []
    scalars: dict[str, Any] = {}
    parts: list[bytes] = []
    for group, named in groups.items():
        for name, value in named.items():
            if isinstance(value, Tensor):
                described.append((group, name, str(value.dtype), tuple(value.shape)))
                parts.append(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            else:
                scalars[f"{group}/{name}"] = value
    data = b"".join(parts)
    array = Array(dtype="uint8", shape=(len(data),), stype=_STYPE, data=data) if data else None
    return PackedGroups(tuple(described), scalars, tuple(groups), array)


def pack(header: Header, *parts: PackedGroups | Groups) -> RecordDict:
    """Return a message's content: `header` says what it is about, the parts hold groups of named tensors and scalars.

    A part that goes to many nodes is packed once, and Flower stores and sends it once. Scalars are in the header's
    record, as `group/name`: a record of their own would cost one more request each way.
    """
    packed = [part if isinstance(part, PackedGroups) else pack_groups(part) for part in parts]
    described = [[number, *row] for number, part in enumerate(packed) for row in part.described]
    groups = [group for part in packed for group in part.groups]
    scalars = {name: value for part in packed for name, value in part.scalars.items()}
    arrays = {str(number): part.array for number, part in enumerate(packed) if part.array is not None}
    return RecordDict(
        {
            _HEADER: ConfigRecord({**scalars, **header, _TENSORS: json.dumps(described), _GROUPS: groups}),
            _TENSORS: ArrayRecord(arrays),
        }
    )


def unpack(content: RecordDict) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the header and the groups. Raises BadMessage if sizes, types or names do not fit."""
    try:
        header = dict(content.config_records[_HEADER])
        described = json.loads(str(header.pop(_TENSORS)))
        groups: dict[str, dict[str, Any]] = {str(group): {} for group in header.pop(_GROUPS)}  # type: ignore[union-attr]
        for path in [path for path in header if "/" in path]:
            group, _, name = path.partition("/")
            groups[group][name] = header.pop(path)
        unread = {part: _Unread(bytearray(array.data)) for part, array in content.array_records[_TENSORS].items()}
        for part, group, name, dtype, shape in described:
            if name in groups[group]:
                raise BadMessage(f"'{name}' is in it twice")
            groups[group][name] = unread.setdefault(str(part), _Unread(bytearray())).take(name, dtype, shape)
        over = sum(part.size for part in unread.values())
        if over:
            raise BadMessage(f"there are {over} bytes that belong to nothing")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        if isinstance(error, BadMessage):
            raise
        raise BadMessage(f"it cannot be read ({type(error).__name__}: {error})") from error
    return header, groups


class _Unread:
    """The bytes of an array that have not been read as tensors yet."""

    def __init__(self, data: bytearray) -> None:
        self._data, self._start = data, 0

    @property
    def size(self) -> int:
        return len(self._data) - self._start

    def take(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        if dtype not in _DTYPES:
            raise BadMessage(f"'{name}' has the dtype {dtype}")
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in shape):
            raise BadMessage(f"'{name}' has the shape {list(shape)}")
        kind, count = _DTYPES[dtype], prod(shape)
        size = count * kind.itemsize
        if size > self.size:
            raise BadMessage(f"'{name}' should have {size} bytes, and {self.size} are left")
        if not size:
            return torch.empty(tuple(shape), dtype=kind)
        # A copy of its own, because what lies here is aligned for no type.
        taken = torch.frombuffer(self._data, dtype=kind, count=count, offset=self._start).view(tuple(shape)).clone()
        self._start += size
        return taken


def packed_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's tensors and scalars on the wire."""
    tensors = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    return tensors + 8 * sum("/" in name for name in content.config_records.get(_HEADER, {}))
