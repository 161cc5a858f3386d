"""The size and the hash of a message's content, the same at the machine that sends it and at the one that receives it.

Flower's own encoding may change with its version, so the hash is over a plain description: every value by its record
and its name, in the order of the names, and the SHA-256 of the bytes of every array.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict

#: Characters of a name from another machine that an entry keeps.
LONGEST_NAME = 100


@dataclass(frozen=True)
class Described:
    """A content's hash, and the bytes of its arrays and of its other values."""

    sha256: str
    array_bytes: int
    header_bytes: int

    def to_entry(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "array_bytes": self.array_bytes, "header_bytes": self.header_bytes}


def describe(content: RecordDict, known: dict[int, str] | None = None) -> Described:
    """Return the hash and the size of a content.

    `known` keeps the hashes of arrays between calls, by identity: a model that goes to many sites is hashed once.
    """
    lines, arrays = [], 0
    for name, record in content.array_records.items():
        for key, array in record.items():
            arrays += len(array.data)
            lines.append(["array", name, key, array.dtype, list(array.shape), array.stype, _array(array, known)])
    for kind, records in (("config", content.config_records), ("metric", content.metric_records)):
        for name, values in records.items():
            lines += [[kind, name, key, _plain(value)] for key, value in values.items()]
    texts = sorted(json.dumps(line) for line in lines)
    header = sum(len(text) for text in texts)
    return Described(hashlib.sha256("\n".join(texts).encode()).hexdigest(), arrays, header)


def about(message: Message) -> dict[str, Any]:
    """Return what a message is about: its run, round and phase or question, as it says itself. Never raises."""
    metadata = message.metadata
    entry: dict[str, Any] = {"flower_run": str(metadata.run_id), "type": _short(metadata.message_type)}
    if message.has_error():
        return entry
    header: Any = {}
    for values in message.content.config_records.values():
        header = {**header, **values}
    for field, name in (("run", "run"), ("round", "round"), ("phase", "phase"), ("ask", "question")):
        if field in header:
            value = header[field]
            entry[name] = value if isinstance(value, int) and abs(value) < 2**53 else _short(value)
    if header.get("problem"):
        entry["refused"] = True
    return entry


def _short(value: Any) -> str:
    return str(value)[:LONGEST_NAME]


def _array(array: Any, known: dict[int, str] | None) -> str:
    if known is None:
        return hashlib.sha256(array.data).hexdigest()
    if id(array) not in known:
        known[id(array)] = hashlib.sha256(array.data).hexdigest()
    return known[id(array)]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
