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
from pathlib import Path
from typing import Any, TypeGuard

from farfield.records.atomic import append_row, read_rows
from farfield.records.checksums import UNREADABLE

SEALED = "target.sealed.jsonl"
LOOKS = "looks.jsonl"
#: The key under which the figures of the site stand among a round's metrics.
SITE = "site"
#: What sealed text begins with. Older records have none: they are in base 85, which takes ten times as long to read.
BASE_64 = "b64:"
#: Bytes under one seal, at most: of a round's metrics, and of the figures of a site.
LARGEST_METRICS, LARGEST_SITE = 64 * 2**10, 32 * 2**20
#: Metrics of one round, at most.
MOST_METRICS = 500


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
        metrics = _unseal(row.get("sealed"), LARGEST_METRICS) if row.get("domain") == domain else None
        round = row.get("round")
        if _is_round(round) and _are_metrics(metrics):
            opened.append((round, metrics))
    return opened


def open_sites(run: Path, rounds: Collection[int], domain: str | None = None) -> dict[int, dict[str, Any]]:
    """The figures of the held-out site in these rounds, where they were recorded. For the report only, as above."""
    opened = {}
    for row in read_rows(run / SEALED):
        round = row.get("round")
        if row.get("domain") == domain and _is_round(round) and round in rounds:
            site = _unseal(row.get(SITE), LARGEST_SITE)
            if isinstance(site, dict):
                opened[round] = site
    return opened


def _is_round(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_metrics(value: Any) -> TypeGuard[dict[str, float]]:
    """Whether these are figures by name, each a number or nothing, and not more than any run has."""
    return (
        isinstance(value, dict)
        and len(value) <= MOST_METRICS
        and all(of is None or (isinstance(of, int | float) and not isinstance(of, bool)) for of in value.values())
    )


def _seal(values: Mapping[str, Any]) -> str:
    return BASE_64 + base64.b64encode(zlib.compress(json.dumps(dict(values)).encode())).decode()


def _unseal(text: Any, largest: int) -> Any:
    """Return what is under a seal; None for what is damaged, or larger than anything that a run seals.

    A megabyte can unpack to a gigabyte, so no more than `largest` bytes are ever unpacked.
    """
    if not isinstance(text, str):
        return None
    try:
        packed = base64.b64decode(text[len(BASE_64) :]) if text.startswith(BASE_64) else base64.b85decode(text)
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, largest)
        if unpacking.unconsumed_tail or not unpacking.eof:
            return None
        return json.loads(data)
    except (zlib.error, *UNREADABLE):
        return None


def count_look(sweep: Path, purpose: str) -> int:
    """Note that the target rows of a sweep are being opened; returns how often that has happened, this one included."""
    append_row(sweep / LOOKS, {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "purpose": purpose})
    return looks(sweep)


def looks(sweep: Path) -> int:
    return sum(1 for _ in read_rows(sweep / LOOKS))
