"""Changes to real files, as damage, carelessness or malice would make them: of bytes, and of what the bytes mean."""

from __future__ import annotations

import base64
import copy
import json
import random
import tomllib
import zlib
from dataclasses import dataclass
from typing import Any

import tomli_w

#: Values that code seldom expects where something else was.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**53, 2**63, -(2**63) - 1, 2**64, 10**40, 10**400, 0.0, -0.0, 1e-320,
    1e308, -1e308, float("nan"), float("inf"), "", " ", "0", "nan", "1e999", "9" * 400, "a" * 5000, "\x00", "\x1b[31m",
    "\ud7ff\uffff", "../../../etc/passwd", "/", ".", "{}", "<script>", "ß" * 40, "%s%n", "-", [], {}, [[]], {"": {}},
    [None] * 50, [[[[[[]]]]]], {"a": {"a": {"a": {"a": 1}}}},
)  # fmt: skip
#: Texts that cells of tables hold in practice, or should never hold.
CELLS = (
    "", " ", "0", "-1", "9" * 400, "-" + "9" * 400, "1e400", "1e308", "-1e308", "1e-400", "nan", "NaN", "inf", "-inf",
    "NA", "?", "None", "true", "yes", "0x10", "1_000", "1,5", "1.234,5", "1 234", "2021-13-45", "2021-02-30T25:61",
    "31.12.99", "9999999-01-01", "0001-01-01", "'", '"', '"a', "a\nb", "a\tb", ";", "|", ",", "\\", "\x00", "\x1b[2J",
    "\ufeff", "\u202e", "é", "😀", "a" * 40_000, "=1+1", "12 kg", "<5", "١٢", "1e5", "+5", "5.", ".5", "--5", "0" * 50,
    "2" * 19, "9223372036854775808", "1" * 4301, "-0", "00012", "12:30", "1/0", "∞", "½", "1e+", "0.1" * 3, "True", "N",
)  # fmt: skip
_TOKENS = (
    b"\x00", b"\xff", b"\xff\xfe", b"\n", b"\r\n", b"\r", b'"', b"'", b"[", b"]", b"{", b"}", b",", b":", b"=", b"#",
    b"\\", b"NaN", b"Infinity", b"1e999", b"-", b"null", b"true", b"9" * 400, b"[" * 3000, b"{\"a\":" * 2000,
    b"\xc3\x28", b"\xed\xa0\x80", b"\x1b[31m", b"../", b"%00", b"\xef\xbb\xbf", b"]" * 20, b"0" * 64,
)  # fmt: skip


@dataclass(frozen=True)
class Seed:
    """A real input: a prefix that chooses what it is for, its content, and what the content is written in."""

    body: bytes
    format: str = "bytes"
    prefix: bytes = b""

    @property
    def data(self) -> bytes:
        return self.prefix + self.body


def mutate(seed: Seed, chance: random.Random) -> bytes:
    """Return a changed copy of an input: of its bytes, or of what it says."""
    body = seed.body
    for _ in range(1 + min(4, int(chance.expovariate(1.0)))):
        change = _STRUCTURED.get(seed.format)
        if change is not None and chance.random() < 0.7:
            try:
                body = change(body, chance)
                continue
            except Exception:  # no longer what it was: its bytes can still be changed
                pass
        body = mutate_bytes(body, chance)
    return seed.prefix + body


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return chance.choice(_TOKENS)
    place = chance.randrange(len(data))
    what = chance.randrange(9)
    if what == 0:
        return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]
    if what == 1:
        return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]
    if what == 2:
        return data[:place]
    if what == 3:
        return data[:place] + data[place + 1 + int(chance.expovariate(0.1)) :]
    if what == 4:
        return data[:place] + chance.choice(_TOKENS) + data[place:]
    if what == 5:
        length = 1 + int(chance.expovariate(0.05))
        return data[:place] + data[place : place + length] * 2 + data[place + length :]
    if what == 6:
        other = chance.randrange(len(data))
        length = 1 + int(chance.expovariate(0.1))
        return data[:place] + data[other : other + length] + data[place + length :]
    if what == 7:
        length = chance.choice((1, 2, 4, 8))
        value = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63, 2**64 - 1))
        return (
            data[:place]
            + (value % 256**length).to_bytes(length, chance.choice(("little", "big")))
            + data[place + length :]
        )
    return data[:place] + bytes(chance.randrange(256) for _ in range(1 + chance.randrange(8))) + data[place:]


def mutate_value(value: Any, chance: random.Random) -> Any:
    """Change one thing in a nest of objects, lists and values."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if not places:
        return chance.choice(VALUES)
    holder, key = chance.choice(places)
    what = chance.randrange(7)
    if what <= 2:
        holder[key] = copy.deepcopy(chance.choice(VALUES))
    elif what == 3:
        del holder[key]
    elif what == 4:
        other, name = chance.choice(places)
        try:
            holder[key] = copy.deepcopy(other[name])
        except (KeyError, IndexError):
            del holder[key]
    elif what == 5 and isinstance(holder, dict):
        holder[str(chance.choice((f"{key}x", "", "round", key[:-1], "é", "__class__")))] = holder.pop(key)
    elif isinstance(holder, list):
        holder.insert(key, copy.deepcopy(chance.choice(VALUES)))
    elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        before = holder[key]
        holder[key] = chance.choice((-before, before + 1, before * 1000, str(before), float(before)))
    else:
        holder[key] = [holder[key]]
    return value


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        places.append((value, key))
        _collect(inner, places)


def mutate_json(body: bytes, chance: random.Random) -> bytes:
    return json.dumps(mutate_value(json.loads(body), chance)).encode()


def mutate_lines(body: bytes, chance: random.Random) -> bytes:
    """Change one line of JSON lines; of a sealed one perhaps what is under the seal."""
    lines = body.splitlines()
    number = chance.randrange(len(lines))
    row = json.loads(lines[number])
    sealed = [name for name, text in row.items() if isinstance(text, str) and text.startswith("b64:")]
    if sealed and chance.random() < 0.7:
        name = chance.choice(sealed)
        inner = mutate_value(json.loads(zlib.decompress(base64.b64decode(row[name][4:]))), chance)
        row[name] = "b64:" + base64.b64encode(zlib.compress(json.dumps(inner).encode())).decode()
        row.pop("check", None)
    else:
        row.pop("check", None)
        row = mutate_value(row, chance)
    lines[number] = json.dumps(row).encode()
    if chance.random() < 0.1:
        lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    return b"\n".join(lines) + b"\n"


def mutate_toml(body: bytes, chance: random.Random) -> bytes:
    return tomli_w.dumps(mutate_value(tomllib.loads(body.decode()), chance)).encode()


def mutate_table(body: bytes, chance: random.Random) -> bytes:
    """Change cells, rows and columns of a text table."""
    rows = [line.split(",") for line in body.decode().splitlines()]
    row = chance.randrange(len(rows))
    what = chance.randrange(10)
    if what <= 4:
        rows[row][chance.randrange(len(rows[row]))] = chance.choice(CELLS)
    elif what == 5:
        column = chance.randrange(len(rows[0]))
        cell = chance.choice(CELLS)
        for other in rows[1:]:
            if column < len(other):
                other[column] = cell
    elif what == 6:
        del rows[row]
    elif what == 7:
        rows.insert(row, list(chance.choice(rows)))
    elif what == 8:
        del rows[row][chance.randrange(len(rows[row]))]
    else:
        separator = chance.choice((";", "\t", "|", ",,", " ", ", "))
        return "\n".join(separator.join(each) for each in rows).encode()
    return ("\n".join(",".join(each) for each in rows) + "\n").encode("utf-8", "replace")


_STRUCTURED = {"json": mutate_json, "jsonl": mutate_lines, "toml": mutate_toml, "csv": mutate_table}
