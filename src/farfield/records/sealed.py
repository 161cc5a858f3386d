"""Target rows, kept apart from everything that chooses.

What a model scores on the held-out domain is written here and read back by the report alone. The rows are encoded, so
that nobody sees them by looking at a folder in passing, and every opening is counted in `looks.jsonl`: a figure that
was looked at forty times is not what one that was looked at once is.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

from farfield.records.atomic import append_row, read_rows

SEALED = "target.sealed.jsonl"
LOOKS = "looks.jsonl"


def append_sealed(run: Path, round: int, metrics: Mapping[str, float | None]) -> None:
    payload = base64.b85encode(zlib.compress(json.dumps(dict(metrics)).encode())).decode()
    append_row(run / SEALED, {"round": round, "sealed": payload})


def open_sealed(run: Path) -> list[tuple[int, dict[str, float]]]:
    """The target rows of one run. For the report only: call `count_look` on the sweep first."""
    return [
        (row["round"], json.loads(zlib.decompress(base64.b85decode(row["sealed"])))) for row in read_rows(run / SEALED)
    ]


def count_look(sweep: Path, purpose: str) -> int:
    """Note that the target rows of a sweep are being opened; returns how often that has happened, this one included."""
    append_row(sweep / LOOKS, {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "purpose": purpose})
    return looks(sweep)


def looks(sweep: Path) -> int:
    return sum(1 for _ in read_rows(sweep / LOOKS))
