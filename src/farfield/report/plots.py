"""Two plots as SVG: curves over rounds, and differences to the baseline as dots with intervals.

Colours are Okabe and Ito's, which readers with any kind of colour vision tell apart; methods beyond the palette get
dashes as well. A page may set `--series-0` … `--series-6` to suit its background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from farfield.report.formats import metric_value
from farfield.report.svg import (
    FONT,
    Element,
    Scale,
    add,
    apart,
    canvas,
    log_ticks,
    nice_ticks,
    round_ticks,
    serialise,
    shortened,
    text,
    text_width,
    tick_label,
)

#: The first is the baseline's.
PALETTE = ("#4d4d4d", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")

WIDTH = 420.0
_LABEL = 15
_LINE = 16.0


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


def curves(
    series: Sequence[Series], axis: Range, *, title: str, x_label: str, y_label: str, metric: str, identity: str
) -> str:
    """One curve per variant with its name at its end, and a band where a spread is known. Values are in plot units."""
    names = shortened([s.name for s in series], _LABEL)
    right = 22 + max((text_width(n) for n in names.values()), default=0)
    height = max(300.0, 90 + _LINE * len(series))
    left, top, bottom = 46.0, 26.0, height - 44
    xs = [x for s in series for x, _ in s.points]
    first, last = min(xs), max(xs)
    x = Scale(first, last if last > first else first + 1, left, WIDTH - right)
    y = Scale(axis.ticks[0], axis.ticks[-1], bottom, top, axis.log)

    root = canvas(WIDTH, height, title, _described(series, metric), identity)
    _y_axis(root, y, axis, WIDTH - right)
    for tick in round_ticks(math.ceil(first), math.floor(last)):
        text(root, x(tick), bottom + 18, str(tick), "middle", class_="tick")
    text(root, (left + WIDTH - right) / 2, height - 8, x_label, "middle", class_="axis")
    text(root, 4, 14, y_label, class_="axis")

    clip = add(add(root, "clipPath", id=f"{identity}-clip"), "rect", x=left, y=top - 2)
    clip.set("width", f"{WIDTH - right - left + 3:.2f}")
    clip.set("height", f"{bottom - top + 4:.2f}")
    inside = add(root, "g", clip_path=f"url(#{identity}-clip)")
    for s in series:
        if len(s.band) > 1:
            edge = [(r, high) for r, _, high in s.band] + [(r, low) for r, low, _ in reversed(s.band)]
            add(inside, "path", d=_path(edge, x, y) + "Z", style=f"fill:{colour(s.style)}", fill_opacity="0.13")
    # The baseline is drawn last, so that the others do not hide what they are compared with.
    for s in sorted(series, key=lambda s: s.style == 0):
        _curve(inside, s, x, y, metric)

    drawn = [s for s in series if s.points]
    ends = [y(s.points[-1][1]) for s in drawn]
    for s, end, at in zip(drawn, ends, apart(ends, _LINE, top, bottom), strict=True):
        from_x = x(s.points[-1][0])
        leader = add(root, "path", d=f"M{from_x + 2:.2f} {end:.2f}L{WIDTH - right + 14:.2f} {at:.2f}", fill="none")
        _stroke(leader, s.style, 1.0)
        label = text(root, WIDTH - right + 17, at + FONT * 0.34, names[s.name], class_="name")
        add(label, "title").text = s.name
    return serialise(root)


def differences(rows: Sequence[Interval], *, title: str, x_label: str, metric: str, identity: str) -> str:
    """One line per variant: dot, interval, and a faint dot for each domain. Zero is the baseline."""
    names = shortened([r.name for r in rows], _LABEL)
    left = 14 + max((text_width(name) for name in names.values()), default=0)
    row_height = 30.0
    top, height = 12.0, 12 + row_height * len(rows) + 50
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
    for i, r in enumerate(rows):
        at = top + row_height * (i + 0.5)
        label = text(root, left - 6, at + FONT * 0.34, names[r.name], "end", class_="name")
        add(label, "title").text = r.name
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
    return 100 * value if metric in ("accuracy", "macro_f1") else value


def _unscaled(metric: str, value: float) -> float:
    return value / plot_value(metric, 1.0)


def _shown(metric: str, value: float) -> str:
    return metric_value(metric, _unscaled(metric, value), sign=True)


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
    return "M" + "L".join(f"{x(px):.2f} {y(py):.2f}" for px, py in points)


def _described(series: Sequence[Series], metric: str) -> str:
    parts = [
        f"{s.name} ends at {metric_value(metric, _unscaled(metric, s.points[-1][1]))}"
        for s in series
        if s.points and math.isfinite(s.points[-1][1])
    ]
    return "; ".join(parts)
