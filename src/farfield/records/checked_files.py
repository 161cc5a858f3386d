"""JSON and TOML files with a checksum: written whole or not at all, and refused when they are not as written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farfield.records.atomic import write_atomic
from farfield.records.checksums import CHECK, UNREADABLE, DamagedFile, digest, finite_number, refuse_number

_TOML_END = re.compile(rb'# check = "([0-9a-f]{32})"\n\Z')


def write_checked_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with its checksum, whole or not at all. The order stays: that of sites is their number."""
    checked = {**content, CHECK: _of_content(content)}
    write_atomic(path, (json.dumps(checked, indent=2, allow_nan=False) + "\n").encode())


def read_checked_json(path: Path) -> dict[str, Any]:
    """Return a JSON object without its checksum. Raises DamagedFile, and FileNotFoundError where there is none."""
    return checked_object(path, path.read_bytes())


def checked_object(path: Path, data: bytes) -> dict[str, Any]:
    """Return the JSON object in these bytes of a file without its checksum. Raises DamagedFile."""
    try:
        content = json.loads(data, parse_constant=refuse_number, parse_float=finite_number)
    except UNREADABLE as error:
        raise DamagedFile(f"'{path}' is damaged: {_said(error)}") from error
    if not isinstance(content, dict):
        raise DamagedFile(f"'{path}' is damaged: it holds no JSON object")
    known = content.pop(CHECK, None)
    if known is not None and known != _of_content(content):
        raise DamagedFile(_not_as_written(path))
    return content


def _of_content(content: Mapping[str, Any]) -> str:
    plain = {name: value for name, value in content.items() if name != CHECK}
    return digest(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("utf-8", "backslashreplace"))


def write_checked_toml(path: Path, text: str) -> None:
    """Write TOML with its checksum as a comment at the end, whole or not at all."""
    body = text.encode()
    write_atomic(path, body + f'# {CHECK} = "{digest(body)}"\n'.encode())


def read_checked_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says. Raises DamagedFile, and FileNotFoundError where there is none."""
    data = path.read_bytes()
    end = _TOML_END.search(data)
    if end is not None and digest(data[: end.start()]) != end[1].decode():
        raise DamagedFile(
            f"{_not_as_written(path)} (whoever changed it on purpose removes its last line, the checksum)"
        )
    try:
        return tomllib.loads(data.decode())
    except UNREADABLE as error:
        raise DamagedFile(f"'{path}' is damaged: {_said(error)}") from error


def _not_as_written(path: Path) -> str:
    return f"'{path}' is damaged: its content does not match its checksum; restore it from a copy"


def _said(error: BaseException) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:300]
