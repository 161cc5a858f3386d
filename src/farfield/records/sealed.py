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
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from farfield.records.atomic import append_row, read_rows

SEALED = "target.sealed.jsonl"
LOOKS = "looks.jsonl"
#: The key under which the figures of the site stand among a round's metrics.
SITE = "site"
#: What sealed text begins with. Older records have none: they are in base 85, which takes ten times as long to read.
BASE_64 = "b64:"


def append_sealed(run: Path, round: int, metrics: Mapping[str, Any], domain: str | None = None) -> None:
    """Seal what a round scores. A run that holds out several domains names the `domain` of each row.

    The figures of the site, under "site", are sealed by themselves: they are many, and read for the chosen round only.
    """
    flat = {name: value for name, value in metrics.items() if name != SITE}
    row = {"round": round, "sealed": _seal(flat), **({} if domain is None else {"domain": domain})}
    if metrics.get(SITE) is not None:
        row[SITE] = _seal(metrics[SITE])
    append_row(run / SEALED, row)


def open_sealed(run: Path, domain: str | None = None) -> list[tuple[int, dict[str, float]]]:
    """The target rows of one run, or of one of its held-out domains. For the report only: call `count_look` first.

    Lines that a damaged disk has made unreadable are passed over, as those that a kill has cut are.
    """
    opened = []
    for row in read_rows(run / SEALED):
        with suppress(ValueError, KeyError, TypeError, zlib.error):
            if row.get("domain") == domain:
                opened.append((int(row["round"]), _unseal(row["sealed"])))
    return opened


def open_sites(run: Path, rounds: Collection[int], domain: str | None = None) -> dict[int, dict[str, Any]]:
    """The figures of the held-out site in these rounds, where they were recorded. For the report only, as above."""
    opened = {}
    for row in read_rows(run / SEALED):
        with suppress(ValueError, KeyError, TypeError, zlib.error):
            if row.get("domain") == domain and row["round"] in rounds:
                opened[int(row["round"])] = _unseal(row[SITE])
    return opened


def _seal(values: Mapping[str, Any]) -> str:
    return BASE_64 + base64.b64encode(zlib.compress(json.dumps(dict(values)).encode())).decode()


def _unseal(text: str) -> Any:
    if text.startswith(BASE_64):
        return json.loads(zlib.decompress(base64.b64decode(text[len(BASE_64) :])))
    return json.loads(zlib.decompress(base64.b85decode(text)))


def count_look(sweep: Path, purpose: str) -> int:
    """Note that the target rows of a sweep are being opened; returns how often that has happened, this one included."""
    append_row(sweep / LOOKS, {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "purpose": purpose})
    return looks(sweep)


def looks(sweep: Path) -> int:
    return sum(1 for _ in read_rows(sweep / LOOKS))
