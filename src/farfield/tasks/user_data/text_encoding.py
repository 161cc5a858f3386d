"""In which encoding a text file is, where it is not UTF-8."""

from __future__ import annotations

import codecs
import gzip
import re
from pathlib import Path

#: What programs write that do not write UTF-8, most usual first. The last one reads any bytes.
USUAL = ("cp1252", "latin-1")
DEFAULT = "utf-8-sig"
_WORD = re.compile(r"[^\s,;|\"']*[^\x00-\x7f][^\s,;|\"']*")


def known_encoding(name: str) -> str | None:
    """The encoding of a name under which Python reads it; None for one that it does not know. UTF-8 may have a mark."""
    try:
        found = codecs.lookup(name).name
    except LookupError:
        return None
    return DEFAULT if found in ("utf-8", "utf-8-sig") else found


def working_encoding(path: Path) -> tuple[str, str] | None:
    """Return an encoding in which a file can be read, and a word that shows how; None where none is likely."""
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        data: bytes = file.read()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        candidates: tuple[str, ...] = ("utf-16",)
    elif b"\0" in data:
        return None
    else:
        candidates = USUAL
    for name in candidates:
        try:
            text = data.decode(name)
        except UnicodeDecodeError:
            continue
        word = _WORD.search(text.lstrip("\ufeff"))
        return name, word.group() if word else ""
    return None
