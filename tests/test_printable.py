"""Text that a terminal would obey is shown."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from farfield.printable import one_line, visible

#: How Unicode calls marks that embed, override or isolate a direction, and what has no direction and no width.
DIRECTIONS = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI", "BN")
#: A soft hyphen, shorthand and musical notation, which harm nobody.
HARMLESS = (0xAD, *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B))


def is_obeyed(code: int) -> bool:
    category = unicodedata.category(chr(code))
    turns = category == "Cf" and unicodedata.bidirectional(chr(code)) in DIRECTIONS and code not in HARMLESS
    return turns or category in ("Cc", "Cs", "Zl", "Zp")


def test_no_control_separator_half_or_bidirectional_character_gets_through() -> None:
    obeyed = [chr(code) for code in range(sys.maxunicode + 1) if is_obeyed(code)]
    assert len(obeyed) > 2000
    shown = one_line("".join(obeyed))
    assert not set(shown) & set(obeyed)
    assert shown.isascii()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\x1b[2Jclear", r"\x1b[2Jclear"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31mC1", r"\x9b31mC1"),
        ("a\nerror: b\r\tc", r"a\nerror: b\r\tc"),
        ("user\u202etxt.exe", r"user\u202etxt.exe"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("half \ud800", r"half \ud800"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("Zürich · Ελλάδα · 東京 · שלום · naïve 😀 ½\u202f%", "Zürich · Ελλάδα · 東京 · שלום · naïve 😀 ½\u202f%"),
    ],
)
def test_what_a_terminal_obeys_is_an_escape_and_the_rest_stays(text: str, line: str) -> None:
    assert one_line(text) == line
    line.encode()


def test_a_text_with_a_layout_keeps_its_lines() -> None:
    assert visible("a\n\tb\rc\x1b") == "a\n\tb\\rc\\x1b"
    assert visible(visible("\x1b")) == visible("\x1b")
