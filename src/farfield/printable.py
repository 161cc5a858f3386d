"""Text from other machines and files, made safe to show: what a terminal or a browser would obey becomes visible.

A site, a column, a class or a domain may be named anything, and an error may quote it. Printed unchanged, such a name
could clear the screen, write a second line that looks like ours, or turn the order of the letters round.
"""

from __future__ import annotations

import re
from typing import Any

#: Control characters (C0, DEL, C1), marks and overrides of the writing direction, characters without a width, the two
#: separators of lines and paragraphs, tags, half characters, and what XML does not allow.
_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return a text with every character that a terminal would obey written as an escape, such as `\x1b`.

    `keep` are characters that stay: by default the ends of lines and tabs, for a text that has a layout.
    """
    return _OBEYED.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def one_line(text: object) -> str:
    r"""Return a text as one line: a name or message in which a new line would look like a message of ours."""
    return visible(str(text), keep="")


def visible_in(value: Any) -> Any:
    """Return nested dicts and lists in which every text is visible, for a page that shows them."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible_in(key): visible_in(of) for key, of in value.items()}
    return [visible_in(of) for of in value] if isinstance(value, list | tuple) else value


def _escape(character: str) -> str:
    short = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
    code = ord(character)
    if character in short:
        return short[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
