"""Two plots as SVG: curves over rounds, and differences to the baseline as dots with intervals.

Colours are Okabe and Ito's, which readers with any kind of colour vision tell apart; methods beyond the palette get
dashes as well. A page may set `--series-0` … `--series-6` to suit its background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from farfield.report.formats import is_percent, metric_value
from farfield.report.svg import (
    FONT,
    LINE,
    Element,
    Scale,
    add,
    apart,
    canvas,
    label,
    label_width,
    log_ticks,
    nice_ticks,
    round_ticks,
    serialise,
    text,
    tick_label,
    wrapped,
)

#: The first is the baseline's.
PALETTE = ("#4d4d4d", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")

WIDTH = 420.0
_LABEL = 16


@dataclass(frozen=True)
class Series:
    """One method's curve. `band` holds (x, low, high) where a spread is known. `style` 0 is the baseline's."""

    name: str
    style: int
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Interval:
    """One method's difference to the baseline: the mean, its interval if there is one, and each domain's own."""

    name: str
    mean: float
    low: float | None
    high: float | None
    marks: tuple[tuple[str, float], ...] = ()
    #: Whether the difference is beyond chance; such a dot is filled.
    beyond_chance: bool = False


@dataclass(frozen=True)
class Range:
    """The values that several plots have in common, so that they can be read against each other."""

    ticks: tuple[float, ...]
    log: bool = False

    @classmethod
    def of(cls, groups: Sequence[Sequence[Series]]) -> Range | None:
        """The range of all curves and bands. Positive values that span more than 1 : 100 get powers of ten."""
        curves = [y for series in groups for s in series for _, y in s.points]
        bands = [y for series in groups for s in series for _, low, high in s.band for y in (low, high)]
        if not curves:
            return None
        if min(curves) > 0 and max(curves) > 100 * min(curves):
            return cls(tuple(log_ticks(min(curves), max(curves))), log=True)
        return cls(tuple(nice_ticks(min(curves + bands), max(curves + bands))))


@dataclass(frozen=True)
class Drawing:
    """A plot as SVG, and where its inside lies: what a script needs to say which value a reader points at."""

    svg: str
    #: Left, right, top and bottom of the inside in the drawing's units.
    box: tuple[float, float, float, float]
    #: The values at those edges: first and last x, lowest and highest y.
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False


def curves(
    series: Sequence[Series], axis: Range, *, title: str, x_label: str, y_label: str, metric: str, identity: str
) -> Drawing:
    """One curve per variant with its name at its end, and a band where a spread is known. Values are in plot units."""
    names = {s.name: wrapped(s.name, _LABEL) for s in series}
    heights = [LINE * len(names[s.name]) + 2 for s in series]
    right = 22 + label_width(line for lines in names.values() for line in lines)
    height = max(300.0, 90 + sum(heights))
    left, top, bottom = 46.0, 26.0, height - 44
    xs = [x for s in series for x, _ in s.points]
    first, last = min(xs), max(xs)
    last = last if last > first else first + 1
    x = Scale(first, last, left, WIDTH - right)
    y = Scale(axis.ticks[0], axis.ticks[-1], bottom, top, axis.log)

    root = canvas(WIDTH, height, title, _described(series, metric), identity)
    _y_axis(root, y, axis, WIDTH - right)
    ticks = _x_ticks(first, last)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    for tick in ticks:
        text(root, x(tick), bottom + 18, tick_label(tick, step), "middle", class_="tick")
    text(root, (left + WIDTH - right) / 2, height - 8, x_label, "middle", class_="axis")
    text(root, 4, 14, y_label, class_="axis")

    clip = add(add(root, "clipPath", id=f"{identity}-clip"), "rect", x=left, y=top - 2)
    clip.set("width", f"{WIDTH - right - left + 3:.2f}")
    clip.set("height", f"{bottom - top + 4:.2f}")
    inside = add(root, "g", clip_path=f"url(#{identity}-clip)")
    for s in series:
        if len(s.band) > 1:
            edge = [(r, high) for r, _, high in s.band] + [(r, low) for r, low, _ in reversed(s.band)]
            band = add(inside, "path", d=_path(edge, x, y) + "Z", fill_opacity="0.13", class_="band")
            band.set("style", f"fill:{colour(s.style)}")
    # The baseline is drawn last, so that the others do not hide what they are compared with.
    for s in sorted(series, key=lambda s: s.style == 0):
        _curve(inside, s, x, y, metric)

    drawn = [(s, size) for s, size in zip(series, heights, strict=True) if s.points]
    ends = [y(s.points[-1][1]) for s, _ in drawn]
    places = apart(ends, [size for _, size in drawn], top, bottom)
    for (s, _), end, at in zip(drawn, ends, places, strict=True):
        from_x = x(s.points[-1][0])
        leader = add(root, "path", d=f"M{from_x + 2:.1f} {end:.1f}L{WIDTH - right + 14:.1f} {at:.1f}", fill="none")
        _stroke(leader, s.style, 1.0)
        label(root, WIDTH - right + 17, at, names[s.name], class_="name")
    box = (left, WIDTH - right, top, bottom)
    return Drawing(serialise(root), box, (first, last), (axis.ticks[0], axis.ticks[-1]), axis.log)


def differences(rows: Sequence[Interval], *, title: str, x_label: str, metric: str, identity: str) -> str:
    """One line per variant: dot, interval, and a faint dot for each domain. Zero is the baseline."""
    names = {r.name: wrapped(r.name, _LABEL) for r in rows}
    left = 14 + label_width(line for lines in names.values() for line in lines)
    heights = [max(30.0, LINE * len(names[r.name]) + 8) for r in rows]
    top, height = 12.0, 12 + sum(heights) + 50
    bottom = height - 44
    seen = [v for r in rows for v in (r.mean, r.low, r.high, *(m for _, m in r.marks)) if v is not None]
    # Zero keeps away from the edges, so that both sides of it can be seen.
    reach = max(abs(v) for v in seen) or 1.0
    ticks = nice_ticks(min(-0.1 * reach, *seen), max(0.1 * reach, *seen))
    x = Scale(ticks[0], ticks[-1], left + 6, WIDTH - 14)

    described = "; ".join(f"{r.name} {metric_value(metric, _unscaled(metric, r.mean), sign=True)}" for r in rows)
    root = canvas(WIDTH, height, title, described, identity)
    for tick in ticks:
        zero = abs(tick) < 1e-9 * abs(ticks[-1] - ticks[0])
        add(root, "line", x1=x(tick), x2=x(tick), y1=top, y2=bottom, class_="zero" if zero else "grid")
        text(root, x(tick), bottom + 18, tick_label(tick, ticks[1] - ticks[0]), "middle", class_="tick")
    text(root, (left + WIDTH) / 2, height - 8, x_label, "middle", class_="axis")
    start = top
    for r, size in zip(rows, heights, strict=True):
        at = start + size / 2
        start += size
        label(root, left - 6, at, names[r.name], "end", class_="name")
        for domain, value in r.marks:
            dot = add(root, "circle", cx=x(value), cy=at + 9, r=2.4, class_="mark")
            add(dot, "title").text = f"{domain}: {_shown(metric, value)}"
        if r.low is not None and r.high is not None:
            add(root, "line", x1=x(r.low), x2=x(r.high), y1=at, y2=at, class_="interval")
        dot = add(root, "circle", cx=x(r.mean), cy=at, r=5, class_="dot beyond" if r.beyond_chance else "dot")
        add(dot, "title").text = f"{r.name}: {_shown(metric, r.mean)}"
    return serialise(root)


def colour(style: int) -> str:
    """The baseline's colour for 0; the others take turns with the rest of the palette."""
    at = 0 if style == 0 else (style - 1) % (len(PALETTE) - 1) + 1
    return f"var(--series-{at},{PALETTE[at]})"


def plot_value(metric: str, value: float) -> float:
    """A metric in the unit that axes show."""
    return 100 * value if is_percent(metric) else value


def _unscaled(metric: str, value: float) -> float:
    return value / plot_value(metric, 1.0)


def _shown(metric: str, value: float) -> str:
    return metric_value(metric, _unscaled(metric, value), sign=True)


def _x_ticks(first: float, last: float) -> list[float]:
    """Whole numbers for an axis that counts rounds, round ones for an amount."""
    if last >= 8:
        return [float(tick) for tick in round_ticks(math.ceil(first), math.floor(last))]
    return [tick for tick in nice_ticks(first, last) if first <= tick <= last * (1 + 1e-9)]


def _y_axis(root: Element, y: Scale, axis: Range, right: float) -> None:
    ticks = axis.ticks
    for tick in ticks:
        add(root, "line", x1=46.0, x2=right, y1=y(tick), y2=y(tick), class_="grid")
        step = tick if axis.log else ticks[1] - ticks[0]
        text(root, 40, y(tick) + FONT * 0.34, tick_label(tick, step), "end", class_="tick")


def _curve(parent: Element, series: Series, x: Scale, y: Scale, metric: str) -> None:
    if not series.points:
        return
    group = add(parent, "g", class_="curve")
    last_round, last = series.points[-1]
    add(group, "title").text = f"{series.name}: {metric_value(metric, _unscaled(metric, last))} in round {last_round}"
    if len(series.points) == 1:
        add(group, "circle", cx=x(last_round), cy=y(last), r=3, style=f"fill:{colour(series.style)}")
        return
    line = add(group, "path", d=_path(series.points, x, y), fill="none", stroke_linejoin="round")
    _stroke(line, series.style, 2.6 if series.style == 0 else 1.8)


def _stroke(element: Element, style: int, width: float) -> None:
    element.set("style", f"stroke:{colour(style)}")
    element.set("stroke-width", f"{width}")
    dash = _DASHES[0 if style == 0 else (style - 1) // (len(PALETTE) - 1) % len(_DASHES)]
    if dash:
        element.set("stroke-dasharray", dash)


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x(px):.1f} {y(py):.1f}" for px, py in points)


def _described(series: Sequence[Series], metric: str) -> str:
    parts = [
        f"{s.name} ends at {metric_value(metric, _unscaled(metric, s.points[-1][1]))}"
        for s in series
        if s.points and math.isfinite(s.points[-1][1])
    ]
    return "; ".join(parts)
