"""Figures of a sweep: a metric or a cost against what was swept, with error bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from farfield.records.setting_text import value_text
from farfield.report.formats import is_percent, metric_label
from farfield.report.plots import PALETTE
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
    serialise,
    text,
    tick_label,
    wrapped,
)
from farfield.report.sweep_points import PointLine, SweepPoints

WIDTH, HEIGHT = 460.0, 300.0
#: Values that span more than this get powers of ten.
SPAN = 30.0


@dataclass(frozen=True)
class Dot:
    x: Any
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """One method: dots that are joined, or a flat line for a method that the sweep does not change."""

    name: str
    style: int
    dots: tuple[Dot, ...]
    flat: bool = False


@dataclass(frozen=True)
class Figure:
    name: str
    caption: str
    svg: str


def sweep_figures(points: SweepPoints) -> list[Figure]:
    """Return every figure of a sweep; with two things swept, one panel per value of the second."""
    x, *others = [axis["name"] for axis in points.axes]
    panels: list[tuple[str, list[PointLine]]] = [("", list(points.lines))]
    if others:
        values = points.axes[1]["values"]
        panels = [(f", {others[0]} = {value_text(v)}", _at(points.lines, others[0], v)) for v in values]
    percent = 100.0 if is_percent(points.metric) else 1.0
    what = metric_label(points.metric, points.kind) + (" in %" if percent > 1 else "")
    order = list(dict.fromkeys(line.base for line in points.lines))
    unit, size = points.unit
    swept = points.axes[0]["values"]
    figures = []
    for number, (where, lines) in enumerate(panels):
        drawn = _against(lines, x, order, lambda line: _mean(line, percent))
        title = f"{what} on held-out domains against {x}{where}"
        figures.append(_figure(f"metric-{number}", title, drawn, x, what, swept))
        sent = _by_sent(lines, order, percent, size)
        figures.append(
            _figure(f"sent-{number}", f"{what} against bytes sent{where}", sent, f"{unit} per run, both ways", what)
        )
        if points.reach is not None:
            cost = _against(lines, x, order, lambda line: _to_reach(line, size))
            title = (
                f"{unit} until validation {metric_label(points.reach_metric, points.kind)} is {points.reach:g}{where}"
            )
            figures.append(_figure(f"reach-{number}", title, cost, x, f"{unit} per run", swept))
    return [figure for figure in figures if figure.svg]


def _at(lines: Sequence[PointLine], name: str, value: Any) -> list[PointLine]:
    """Return the lines at one value of an axis; a method that does not have the parameter stands in every panel."""
    return [line for line in lines if line.values.get(name, value) == value]


def _mean(line: PointLine, factor: float) -> Dot | None:
    of = line.overall
    if of is None or not math.isfinite(of.mean):
        return None
    low, high = (None if edge is None else factor * edge for edge in (of.low, of.high))
    return Dot(0, factor * of.mean, low, high)


def _to_reach(line: PointLine, size: float) -> Dot | None:
    return None if line.reached is None else Dot(0, line.reached / size)


def _against(
    lines: Sequence[PointLine], x: str, order: Sequence[str], value: Callable[[PointLine], Dot | None]
) -> list[Line]:
    drawn = []
    for style, base in enumerate(order):
        of = [line for line in lines if line.base == base]
        flat = all(x not in line.values for line in of)
        dots = [Dot(line.values.get(x), dot.y, dot.low, dot.high) for line in of if (dot := value(line)) is not None]
        if dots:
            drawn.append(Line(base, style, tuple(dots), flat))
    return drawn


def _by_sent(lines: Sequence[PointLine], order: Sequence[str], factor: float, size: float) -> list[Line]:
    drawn = []
    for style, base in enumerate(order):
        found = [
            Dot(line.sent / size, dot.y, dot.low, dot.high)
            for line in lines
            if line.base == base and line.sent and (dot := _mean(line, factor)) is not None
        ]
        if found:
            drawn.append(Line(base, style, tuple(sorted(found, key=lambda dot: float(dot.x)))))
    return drawn


@dataclass(frozen=True)
class Axis:
    """Where values of the swept thing stand: on a scale, or side by side where they have none."""

    scale: Scale
    ticks: tuple[tuple[float, str], ...]
    place: Callable[[Any], float]


def x_axis(values: Sequence[Any], start: float, end: float, *, every: bool) -> Axis:
    """Return the axis for these values: powers of ten where they span much, evenly, or side by side.

    `every` marks each value; else round numbers are marked.
    """
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    low, high = (min(numbers), max(numbers)) if numbers else (0, 0)
    positive = [v for v in numbers if v > 0]
    wide = bool(positive) and max(positive) >= SPAN * min(positive)
    if len(numbers) < len(values) or (wide and low <= 0):
        order = list(dict.fromkeys(values))
        scale = Scale(-0.3, max(len(order) - 0.7, 0.3), start, end)
        return Axis(
            scale,
            tuple((scale(i), value_text(v)) for i, v in enumerate(order)),
            lambda v: scale(order.index(v)),
        )
    if wide:
        scale = Scale(low, high, start, end, log=True)
        marks = sorted(set(numbers)) if every else [t for t in log_ticks(low, high) if low <= t <= high]
    else:
        pad = (high - low) * 0.04 or 1.0
        scale = Scale(low - pad, high + pad, start, end)
        marks = sorted(set(numbers)) if every else [t for t in nice_ticks(low, high) if low <= t <= high]
    return Axis(scale, tuple((scale(mark), value_text(mark)) for mark in marks), lambda v: scale(float(v)))


def _figure(
    name: str, title: str, lines: Sequence[Line], x_label: str, y_label: str, swept: Sequence[Any] = ()
) -> Figure:
    seen = [v for line in lines for dot in line.dots for v in (dot.y, dot.low, dot.high) if v is not None]
    xs = list(swept) or [dot.x for line in lines if not line.flat for dot in line.dots]
    if not seen or not xs:
        return Figure(name, title, "")
    names = {line.name: wrapped(line.name, 18) for line in lines}
    right = 22 + label_width(part for parts in names.values() for part in parts)
    left, top, bottom = 56.0, 28.0, HEIGHT - 44
    log = min(seen) > 0 and max(seen) > 100 * min(seen)
    ticks = log_ticks(min(seen), max(seen)) if log else nice_ticks(min(seen), max(seen))
    y = Scale(ticks[0], ticks[-1], bottom, top, log)
    axis = x_axis(xs, left + 6, WIDTH - right, every="per run" not in x_label)
    told = "; ".join(f"{line.name}: " + ", ".join(f"{_name(dot.x)} {dot.y:.4g}" for dot in line.dots) for line in lines)
    root = canvas(WIDTH, HEIGHT, title, told, f"sweep-{name}")
    for tick in ticks:
        add(root, "path", d=f"M{left:.1f} {y(tick):.1f}H{WIDTH - right:.1f}", class_="grid", stroke="currentColor",
            stroke_opacity="0.15")  # fmt: skip
        text(root, left - 6, y(tick) + FONT * 0.34, tick_label(tick, tick if log else ticks[1] - ticks[0]), "end",
             class_="tick")  # fmt: skip
    for at, words in axis.ticks:
        text(root, at, bottom + 18, words, "middle", class_="tick")
    text(root, (left + WIDTH - right) / 2, HEIGHT - 8, x_label, "middle", class_="axis")
    text(root, 4, 14, y_label, class_="axis")
    ends = []
    for line in lines:
        ends.append(_draw(root, line, axis, y, left, WIDTH - right))
    places = apart([at for _, at in ends], [LINE * len(names[line.name]) + 2 for line in lines], top, bottom)
    for line, (from_x, end), at in zip(lines, ends, places, strict=True):
        leader = add(root, "path", d=f"M{from_x + 3:.1f} {end:.1f}L{WIDTH - right + 14:.1f} {at:.1f}", fill="none")
        _stroke(leader, line, 1.0)
        label(root, WIDTH - right + 17, at, names[line.name], class_="name")
    return Figure(name, title, serialise(root))


def _draw(root: Element, line: Line, axis: Axis, y: Scale, left: float, right: float) -> tuple[float, float]:
    """Draw a method's line with its dots and error bars; return where it ends."""
    if line.flat:
        at = y(line.dots[0].y)
        _stroke(add(root, "path", d=f"M{left:.1f} {at:.1f}H{right:.1f}", fill="none"), line, 1.5)
        return right, at
    placed = [(axis.place(dot.x), dot) for dot in line.dots]
    path = "M" + "L".join(f"{x:.1f} {y(dot.y):.1f}" for x, dot in placed)
    _stroke(add(root, "path", d=path, fill="none"), line, 2.0)
    for x, dot in placed:
        if dot.low is not None and dot.high is not None:
            low, high = y(dot.low), y(dot.high)
            _stroke(add(root, "path", d=f"M{x:.1f} {low:.1f}V{high:.1f}", fill="none"), line, 1.0)
        mark = add(root, "circle", cx=x, cy=y(dot.y), r=3.5)
        mark.set("style", f"fill:{_colour(line.style)}")
        bar = "" if dot.low is None or dot.high is None else f" [{dot.low:.4g}, {dot.high:.4g}]"
        add(mark, "title").text = f"{line.name}, {_name(dot.x)}: {dot.y:.4g}{bar}"
    return placed[-1][0], y(placed[-1][1].y)


def _stroke(element: Element, line: Line, width: float) -> None:
    dash = "6 4" if line.flat else "7 3" if line.style >= len(PALETTE) else ""
    element.set("style", f"stroke:{_colour(line.style)};stroke-width:{width}")
    if dash:
        element.set("stroke-dasharray", dash)


def _colour(style: int) -> str:
    number = style % len(PALETTE)
    return f"var(--series-{number}, {PALETTE[number]})"


def _name(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value_text(value)
