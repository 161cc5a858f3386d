"""Print a manifest as the table that a site's operator reads before approving it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from farfield.deployment.manifest.entries import (
    DIAGNOSIS,
    EVALUATION,
    REPLY,
    SCHEMA,
    SECURE_SUMS,
    STATISTICS,
    Entry,
)

if TYPE_CHECKING:
    from farfield.deployment.manifest.manifest import Manifest

#: Tensors are float32; a single number goes as float64.
TENSOR_BYTES, NUMBER_BYTES = 4, 8


def render(manifest: Manifest) -> RenderableType:
    """Return a table of all entries by exchange, and sentences on what never leaves and how often the rest does."""
    title = Text.assemble(
        "What leaves this site in the federation ", (f"'{manifest.federation}'", "bold"), f" ({manifest.algorithm})"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "size", "server needs", "meaning"):
        table.add_column(column, no_wrap=column == "server needs", overflow="fold")
    for exchange, entries in groupby(manifest.entries, key=lambda entry: entry.exchange):
        table.add_row(Text(exchange, style="bold"), "", "", Text(_when(exchange), style="italic"))
        for entry in entries:
            _add(table, entry, NUMBER_BYTES if _has_secure_sums(manifest) else TENSOR_BYTES)
    return Group(title, "", table, "", *(Text(sentence) for sentence in _sentences(manifest)))


def _add(table: Table, entry: Entry, tensor_bytes: int = TENSOR_BYTES) -> None:
    needs = "each site's" if entry.server_sees == "each" else "the sum"
    meaning = f"{entry.meaning} (not in every reply)" if entry.optional else entry.meaning
    table.add_row(Text(f"  {entry.name}"), Text(size_of(entry, tensor_bytes)), needs, Text(meaning))
    if entry.warning:
        table.add_row("", "", "", Text(f"warning: {entry.warning}", style="bold red"))


def size_of(entry: Entry, tensor_bytes: int = TENSOR_BYTES) -> str:
    """Return the size of an entry in words, with numbers and bytes if they say more."""
    if entry.numbers is None or entry.numbers == 1 or entry.size == f"{entry.numbers} numbers":
        return entry.size
    if entry.numbers == 0:
        return f"{entry.size}: none here"
    size = entry.numbers * (
        tensor_bytes if entry.exchange not in (SCHEMA, STATISTICS, DIAGNOSIS, EVALUATION) else NUMBER_BYTES
    )
    return f"{entry.size}: {entry.numbers:,} numbers, {_bytes(size)}"


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:,.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def _has_secure_sums(manifest: Manifest) -> bool:
    return any(entry.exchange == SECURE_SUMS for entry in manifest.entries)


def _when(exchange: str) -> str:
    return {
        SCHEMA: "once, before training",
        STATISTICS: "once, before training",
        DIAGNOSIS: "once, before training",
        EVALUATION: "after each round that is evaluated",
        SECURE_SUMS: "for each of the sums above",
        REPLY: "with what is sent below",
        "evaluate": "after each round that is evaluated",
    }.get(exchange, "once a round")


def _sentences(manifest: Manifest) -> Sequence[str]:
    warned = any(entry.warning for entry in manifest.entries)
    but = "; what is told of single rows has a warning above" if warned else ""
    many = f", at most {manifest.rounds} rounds" if manifest.rounds is not None else ""
    phases = [
        exchange
        for exchange in dict.fromkeys(entry.exchange for entry in manifest.entries)
        if exchange not in (SCHEMA, STATISTICS, DIAGNOSIS, REPLY, SECURE_SUMS)
    ]
    lost = "the same answer again where the server lost it"
    if manifest.privacy:  # the noise is new each time
        lost = "where the server lost an answer, another one with new noise, which counts as well"
    sentences = [
        "Sizes are for this site's columns and classes; where other sites have further ones, the model is larger.",
        f"Never sent: the rows of your data{but}.",
        f"How often: {'each of ' if len(phases) > 1 else ''}{', '.join(phases)} once a round{many}; {lost}.",
        manifest.limits.sentence,
    ]
    if _has_secure_sums(manifest):
        sentences.append(
            "Secure sums: of what the server needs in sum this site sends masked integers, which show nothing, and the "
            "server obtains only the sum over the sites."
        )
    elif any(entry.server_sees == "sum" for entry in manifest.entries):
        sentences.append(
            "Where the server needs the sum it still receives each site's numbers, and adds them up itself."
        )
    if manifest.privacy:
        sentences.append(manifest.privacy)
    if manifest.settings and phases != [EVALUATION]:
        given = ", ".join(f"{key} = {value}" for key, value in manifest.settings.items() if value is not None)
        sentences.append(f"Settings: {given}.")
    return sentences
