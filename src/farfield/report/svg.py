"""The few parts that our plots are drawn from: elements, scales, ticks, labels that keep apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from xml.etree import ElementTree

from farfield.report.formats import MINUS, printable

Element = ElementTree.Element
FONT = 13
#: Mean advance of a character of the page's font, as a share of its size.
CHARACTER = 0.56
#: From one line of a label to the next.
LINE = 15.0
#: A name may be broken after these.
_JOINS = "-_./\\:+,;=|&"


@dataclass(frozen=True)
class Scale:
    """Maps values `low`…`high` to pixels `start`…`end`, evenly or by powers of ten."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low * 1e-3)) if self.log else value
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, a step of 1, 2 or 5 times a power of ten apart."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # the same but for rounding
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around `low`…`high`."""
    return [10.0**i for i in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def round_ticks(low: int, high: int, about: int = 5) -> list[int]:
    """Whole numbers inside `low`…`high`, for an axis that counts."""
    step = max(1, math.ceil(nice_ticks(0, max(high - low, 1), about)[1]))
    return [t for t in range(0, high + 1, step) if t >= low] or [low]


def tick_label(value: float, step: float) -> str:
    """A tick with as many decimals as its step needs."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("-", MINUS)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", MINUS)


def apart(wanted: Sequence[float], gap: float | Sequence[float], low: float, high: float) -> list[float]:
    """Positions as near to the wanted ones as their sizes allow, inside `low`…`high` where there is room.

    `gap` is the room that every position needs, or one size per position; neighbours keep half of both sizes apart.
    """
    sizes = [gap] * len(wanted) if isinstance(gap, int | float) else list(gap)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    offsets = [0.0]
    for before, after in pairwise(order):
        offsets.append(offsets[-1] + (sizes[before] + sizes[after]) / 2)
    # Without their gaps the positions need only keep their order: neighbours that do not are pooled at their mean.
    pools: list[list[float]] = []
    for i, offset in zip(order, offsets, strict=False):
        pools.append([wanted[i] - offset])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    placed = [fmean(pool) for pool in pools for _ in pool]
    result = [0.0] * len(wanted)
    for i, offset, at in zip(order, offsets, placed, strict=False):
        result[i] = max(low, min(at, high - offsets[-1])) + offset
    return result


def canvas(width: float, height: float, title: str, description: str, identity: str) -> Element:
    """An svg that scales with the page and tells a screen reader what it shows."""
    root = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {pixels(width)} {pixels(height)}",
            "role": "img",
            "aria-labelledby": f"{identity}-title {identity}-description",
            "font-size": str(FONT),
            "font-family": "inherit",
        },
    )
    add(root, "title", id=f"{identity}-title").text = title
    add(root, "desc", id=f"{identity}-description").text = description
    return root


def add(parent: Element, tag: str, **attributes: str | float) -> Element:
    """A child element. Underscores in attribute names stand for hyphens, numbers become pixels."""
    named = {
        name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else pixels(value)
        for name, value in attributes.items()
    }
    return ElementTree.SubElement(parent, tag, named)


def text(
    parent: Element, x: float, y: float, content: str, anchor: str = "start", **attributes: str | float
) -> Element:
    element = add(parent, "text", x=x, y=y, text_anchor=anchor, fill="currentColor", **attributes)
    element.text = content
    return element


def wrapped(name: str, characters: int) -> list[str]:
    """Return a name as lines of at most so many characters: names are broken, never cut.

    A line ends after a blank or a sign that joins words where there is one, else in the middle of a word.
    """
    lines, rest = [], " ".join(printable(name).split())
    while len(rest) > characters:
        breaks = [at for at in range(1, characters + 1) if rest[at] == " " or rest[at - 1] in _JOINS]
        at = breaks[-1] if breaks and breaks[-1] > characters // 3 else characters
        lines.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, rest] if rest or not lines else lines


def label(
    parent: Element, x: float, y: float, lines: Sequence[str], anchor: str = "start", **attributes: str | float
) -> Element:
    """Text of several lines, centred on `y`."""
    element = text(parent, x, y, "", anchor, **attributes)
    first = y + FONT * 0.34 - (len(lines) - 1) * LINE / 2
    for i, line in enumerate(lines):
        add(element, "tspan", x=x, y=first + i * LINE).text = line
    return element


def label_width(lines: Iterable[str]) -> float:
    """Return the width of the longest line, about."""
    return max((text_width(line) for line in lines), default=0.0)


def text_width(content: str) -> float:
    return len(content) * FONT * CHARACTER


def pixels(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def serialise(root: Element) -> str:
    """The drawing as XML; characters that XML does not know are left out."""
    return printable(ElementTree.tostring(root, encoding="unicode"))
