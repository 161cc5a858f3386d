"""The pictures of a diagnosis as SVG texts: they scale, need nothing else, and follow the page's colour (dark mode).

    svg = figure(diagnosis["feature shift"])          # None where there is nothing to draw

Text and lines are `currentColor`. Two colours can be set on the page: `--diagnose-warm` and `--diagnose-cool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from farfield.diagnose.finding import Finding

Element = ElementTree.Element
WARM = "var(--diagnose-warm, #d9480f)"
COOL = "var(--diagnose-cool, #1c7ed6)"
FONT = 13
#: Mean width of a character, as a share of the font's size; names are never cut, so room is made for the longest.
CHARACTER = 0.62
CELL = 46
LINE = 24
#: More domains than this are not drawn one by one: those that differ most are.
MOST_LINES = 40


def figure(finding: Finding) -> str | None:
    """Return the picture of a finding, or None where nothing was measured."""
    details = finding.details
    if finding.kind == "label shift" and "distances" in details:
        return _class_shares(details) if "counts" in details else _label_means(details)
    if finding.kind == "feature shift" and "pairs" in details:
        beside = ("to all others", details["to_pool"])
        return _matrix(details["domains"], details["pairs"], "Proxy A-distance between domains", 2.0, beside)
    if finding.kind == "concept shift" and "pairs" in details:
        title = f"Disagreement of linear heads: {finding.measure}"
        most = max(1.0, *(max(row) for row in details["pairs"]))
        return _matrix(details["domains"], details["pairs"], title, most)
    if finding.kind == "gradient conflict" and "pairs" in details:
        beside = ("to the others' mean", details["to_others"])
        return _matrix(
            details["domains"], details["pairs"], "Cosines of the domains' gradients", 1.0, beside, own="1.00"
        )
    if finding.kind == "near-duplicates" and finding.value:
        most = max(1.0, *(max(row) for row in details["pairs"]))
        title = "Rows of a domain (line) with a copy in another (column)"
        return _matrix(details["domains"], details["pairs"], title, most, decimals=0)
    if finding.kind in ("domain leak", "label leak") and "auroc" in details:
        names = [f"{column} → {told}" for column, told in zip(details["columns"], details["tells"], strict=True)]
        return _bars(names, details["auroc"], finding.measure.capitalize(), 1.0, mark=details["from"])
    return None


def _canvas(width: float, height: float, title: str) -> Element:
    root = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width:.0f} {height:.0f}",
            "width": f"{width:.0f}",
            "style": "max-width:100%;height:auto",
            "role": "img",
            "aria-label": title,
            "font-size": str(FONT),
            "font-family": "inherit",
        },
    )
    ElementTree.SubElement(root, "title").text = title
    return root


def _text(root: Element, x: float, y: float, content: str, anchor: str = "start", **more: str) -> None:
    named = {key.replace("_", "-"): value for key, value in more.items()}
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "fill": "currentColor"}
    ElementTree.SubElement(root, "text", place | named).text = _printable(content)


def _box(root: Element, x: float, y: float, width: float, height: float, fill: str, strength: float, tip: str) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{max(width, 0):.1f}", "height": f"{height:.1f}"}
    colour = {"fill": fill, "fill-opacity": f"{strength:.3f}", "stroke": "currentColor", "stroke-opacity": "0.15"}
    box = ElementTree.SubElement(root, "rect", place | colour)
    ElementTree.SubElement(box, "title").text = _printable(tip)


def _serialise(root: Element) -> str:
    return ElementTree.tostring(root, encoding="unicode")


def _printable(text: str) -> str:
    """XML has no place for control characters, and names are other people's text."""
    return "".join(c if c.isprintable() else " " for c in text)


def _room(names: Sequence[str]) -> float:
    return max(len(name) for name in names) * FONT * CHARACTER + 10


def _number(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.lstrip("-")


def _matrix(
    names: Sequence[str],
    matrix: Sequence[Sequence[float]],
    title: str,
    most: float,
    beside: tuple[str, Sequence[float]] | None = None,
    *,
    decimals: int = 2,
    own: str = "",
) -> str:
    """A square of cells, warm for what speaks for shift (high; of cosines negative), with a further column beside."""
    heads = [*names, *([beside[0]] if beside else [])]
    left, top = _room(names), _room(heads) + 6
    gap = 12 if beside else 0
    width, height = left + CELL * len(heads) + gap + 4, top + LINE * len(names) + 6
    root = _canvas(width, height, title)
    for place, head in enumerate(heads):
        x = left + CELL * (place + 0.5) + (gap if place == len(names) else 0) + 4
        _text(root, x, top - 6, head, transform=f"rotate(-90 {x:.1f} {top - 6:.1f})")
    cosines = bool(own)
    for row, name in enumerate(names):
        y = top + LINE * row
        _text(root, left - 8, y + LINE * 0.7, name, "end")
        for place, head in enumerate(heads):
            value = beside[1][row] if beside and place == len(names) else matrix[row][place]
            x = left + CELL * place + (gap if place == len(names) else 0)
            if place == row:
                _box(root, x, y, CELL, LINE, "none", 0, name)
                _text(root, x + CELL / 2, y + LINE * 0.7, own, "middle", opacity="0.5")
                continue
            shown = _number(value, decimals)
            warm = value < 0 if cosines else value > 0
            strength = 0.75 * min(abs(value) / most, 1.0)
            _box(root, x, y, CELL, LINE, WARM if warm else COOL, strength, f"{name}, {head}: {shown}")
            _text(root, x + CELL / 2, y + LINE * 0.7, shown, "middle", pointer_events="none")
    return _serialise(root)


def _bars(names: Sequence[str], values: Sequence[float], title: str, most: float, mark: float | None = None) -> str:
    left, long = _room(names), 260
    root = _canvas(left + long + 64, LINE * len(names) + 10, title)
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 4 + LINE * row
        _text(root, left - 8, y + LINE * 0.65, name, "end")
        rings = mark is not None and value >= mark
        _box(
            root,
            left,
            y + 3,
            long * min(value / most, 1),
            LINE - 6,
            WARM if rings else COOL,
            0.75,
            f"{name}: {value:.3f}",
        )
        _text(root, left + long * min(value / most, 1) + 6, y + LINE * 0.65, f"{value:.3f}")
    return _serialise(root)


def _most_different(details: dict[str, Any]) -> list[int]:
    order = sorted(range(len(details["domains"])), key=lambda n: -details["distances"][n])[:MOST_LINES]
    return sorted(order)


def _class_shares(details: dict[str, Any]) -> str:
    """One bar per domain, cut into its classes."""
    shown = _most_different(details)
    names = [details["domains"][n] for n in shown]
    classes, left, long = details["classes"], _room(names), 420
    few = len(classes) <= 6
    key = LINE * (1 if few else 0)
    root = _canvas(left + long + 10, LINE * len(names) + key + 10, "Class shares of each domain")
    x = left
    for code, name in enumerate(classes if few else []):
        _box(root, x, 6, 12, 12, *_class_colour(code, len(classes)), name)
        _text(root, x + 16, 17, name)
        x += _room([name]) + 20
    for row, number in enumerate(shown):
        y, x = key + 4 + LINE * row, left
        counts = details["counts"][number]
        _text(root, left - 8, y + LINE * 0.65, names[row], "end")
        for code, count in enumerate(counts):
            wide = long * count / sum(counts)
            share = f"{100 * count / sum(counts):.1f} %"
            _box(
                root,
                x,
                y + 2,
                wide,
                LINE - 4,
                *_class_colour(code, len(classes)),
                f"{names[row]}, {classes[code]}: {share}",
            )
            if few and wide > 48:
                _text(root, x + wide / 2, y + LINE * 0.68, share, "middle", pointer_events="none")
            x += wide
    return _serialise(root)


def _class_colour(code: int, classes: int) -> tuple[str, float]:
    """Cool and warm in turn, paler from pair to pair."""
    pairs = max((classes + 1) // 2, 1)
    return (WARM if code % 2 else COOL), 0.7 - 0.55 * (code // 2) / pairs


def _label_means(details: dict[str, Any]) -> str:
    """The mean of each domain's label with one standard deviation to either side."""
    shown = _most_different(details)
    names = [details["domains"][n] for n in shown]
    means = [details["means"][n] for n in shown]
    spreads = [details["deviations"][n] for n in shown]
    low = min(m - s for m, s in zip(means, spreads, strict=True))
    high = max(m + s for m, s in zip(means, spreads, strict=True))
    left, long = _room(names), 420
    scale = long / ((high - low) or 1.0)
    root = _canvas(
        left + long + 20, LINE * (len(names) + 1) + 10, "Mean of the label, one standard deviation to each side"
    )
    for row, (name, mean, spread) in enumerate(zip(names, means, spreads, strict=True)):
        y = 4 + LINE * row
        _text(root, left - 8, y + LINE * 0.65, name, "end")
        tip = f"{name}: {mean:.4g} ± {spread:.4g}"
        _box(root, left + (mean - spread - low) * scale, y + 6, max(2 * spread * scale, 1), LINE - 12, COOL, 0.45, tip)
        _box(root, left + (mean - low) * scale - 1.5, y + 3, 3, LINE - 6, WARM, 1.0, tip)
    _text(root, left, LINE * (len(names) + 1), f"{low:.4g}", opacity="0.7")
    _text(root, left + long, LINE * (len(names) + 1), f"{high:.4g}", "end", opacity="0.7")
    return _serialise(root)
