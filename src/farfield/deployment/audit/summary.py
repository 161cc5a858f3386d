"""How many messages of each kind an audit log has, by peer and phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Line:
    """The messages to and from one peer about one phase or question."""

    peer: str
    what: str
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    #: Replies that say why there is none, errors in place of a reply, and messages that could not be sent.
    refused: int = 0
    failed: int = 0
    first: str = ""
    last: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(entries: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Return one line per peer and phase or question, in the order in which they first occur."""
    lines: dict[tuple[str, str], Line] = {}
    for entry in entries:
        kind = entry.get("kind")
        if "peer" not in entry:
            continue
        what = str(entry.get("phase") or entry.get("question") or entry.get("type"))
        line = lines.setdefault((str(entry["peer"]), what), Line(str(entry["peer"]), what))
        size = _count(entry.get("array_bytes")) + _count(entry.get("header_bytes"))
        if kind == "sent":
            line.sent += 1
            line.sent_bytes += size
        elif kind == "received":
            line.received += 1
            line.received_bytes += size
        else:
            line.failed += 1
        line.refused += bool(entry.get("refused"))
        line.first, line.last = line.first or str(entry.get("time")), str(entry.get("time"))
    return list(lines.values())


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
