"""Plots of sites: what a new one may expect, calibration curves, decision curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from farfield.report.formats import metric_value
from farfield.report.plots import WIDTH, plot_value
from farfield.report.svg import (
    LINE,
    Element,
    Scale,
    add,
    canvas,
    label,
    label_width,
    nice_ticks,
    serialise,
    text,
    tick_label,
    wrapped,
)

#: More sites than this are one cloud of dots without names.
MOST_NAMED = 16
_LABEL = 18
SMALL = 260.0


def new_site_plot(
    sites: Mapping[str, float],
    mean: tuple[float, float, float],
    prediction: tuple[float, float],
    *,
    metric: str,
    title: str,
    x_label: str,
    identity: str,
    prior: float | None = None,
) -> str:
    """A dot per site; below them the mean with its interval, and the range in which a new site is likely to lie."""
    values = {name: plot_value(metric, value) for name, value in sites.items()}
    middle, low, high = (plot_value(metric, value) for value in mean)
    from_, to = (plot_value(metric, value) for value in prediction)
    at_prior = None if prior is None else plot_value(metric, prior)
    named = len(values) <= MOST_NAMED
    rows = {name: wrapped(name, _LABEL) for name in values} if named else {"": [f"{len(values)} sites"]}
    ends = [["mean of these"], ["a new site"]]
    left = 14 + label_width(line for lines in [*rows.values(), *ends] for line in lines)
    heights = [max(24.0, LINE * len(lines) + 6) for lines in rows.values()] if named else [60.0]
    top = 22.0
    height = top + sum(heights) + 2 * 34 + 50
    bottom = height - 44
    seen = [*values.values(), low, high, from_, to, *([] if at_prior is None else [at_prior])]
    ticks = nice_ticks(min(seen), max(seen))
    x = Scale(ticks[0], ticks[-1], left + 6, WIDTH - 14)

    shown = [metric_value(metric, value) for value in (mean[0], *prediction)]
    described = f"mean {shown[0]}; a new site is likely to lie between {shown[1]} and {shown[2]}"
    root = canvas(WIDTH, height, title, described, identity)
    for tick in ticks:
        add(root, "line", x1=x(tick), x2=x(tick), y1=top, y2=bottom, class_="grid")
        text(root, x(tick), bottom + 18, tick_label(tick, ticks[1] - ticks[0]), "middle", class_="tick")
    text(root, (left + WIDTH) / 2, height - 8, x_label, "middle", class_="axis")
    add(root, "rect", x=x(from_), y=top, width=max(1.0, x(to) - x(from_)), height=bottom - top, class_="expected")
    if at_prior is not None:
        add(root, "line", x1=x(at_prior), x2=x(at_prior), y1=top, y2=bottom, class_="prior")
        anchor = "end" if x(at_prior) > WIDTH - 60 else "middle"
        text(root, x(at_prior), top - 6, "prior", anchor, class_="tick")
    start = top
    if named:
        for (name, lines), size in zip(rows.items(), heights, strict=True):
            at = start + size / 2
            start += size
            label(root, left - 6, at, lines, "end", class_="name")
            _dot(root, x(values[name]), at, f"{name}: {metric_value(metric, sites[name])}")
    else:
        label(root, left - 6, start + 30, rows[""], "end", class_="name")
        for i, (name, value) in enumerate(values.items()):
            # The golden ratio spreads dots evenly without a pattern, and the same way every time.
            _dot(root, x(value), start + 8 + 44 * (i * 0.618034 % 1), f"{name}: {metric_value(metric, sites[name])}")
        start += 60
    at = start + 20
    label(root, left - 6, at, ends[0], "end", class_="name")
    add(root, "line", x1=x(low), x2=x(high), y1=at, y2=at, class_="interval")
    add(root, "circle", cx=x(middle), cy=at, r=5, class_="dot beyond")
    at += 32
    label(root, left - 6, at, ends[1], "end", class_="name strong")
    add(root, "line", x1=x(from_), x2=x(to), y1=at, y2=at, class_="prediction")
    for edge in (from_, to):
        add(root, "line", x1=x(edge), x2=x(edge), y1=at - 7, y2=at + 7, class_="prediction")
    return serialise(root)


def _dot(root: Element, x: float, y: float, title: str) -> None:
    add(add(root, "circle", cx=x, cy=y, r=4, class_="site"), "title").text = title


def calibration_plot(
    bins: Sequence[Mapping[str, float]], *, title: str, identity: str, labels: tuple[str, str], shares: bool = True
) -> str:
    """Mean score against what was seen per bin; a dot's area grows with its rows. The diagonal is perfect.

    `labels` are those of the axes. Scores that are `shares` are drawn from 0 on, as far as the scores go.
    """
    points = [b for b in bins if b.get("rows") and b.get("mean_score") is not None and b.get("share") is not None]
    seen = [value for b in points for value in (b["mean_score"], b["share"])]
    most_seen = max(seen, default=1.0)
    if shares:
        ends = (0.0, next((end for end in (0.1, 0.25, 0.5) if most_seen <= end), 1.0))
    else:
        ticks = nice_ticks(min(seen, default=0.0), most_seen)
        ends = (ticks[0], ticks[-1])
    root, x, y = _square(title, *labels, identity, ends, ends)
    add(root, "line", x1=x(ends[0]), y1=y(ends[0]), x2=x(ends[1]), y2=y(ends[1]), class_="zero")
    most = max((b["rows"] for b in points), default=1)
    if len(points) > 1:
        path = "M" + "L".join(f"{x(b['mean_score']):.1f} {y(b['share']):.1f}" for b in points)
        add(root, "path", d=path, fill="none", class_="line-1")
    for b in points:
        dot = add(root, "circle", cx=x(b["mean_score"]), cy=y(b["share"]), r=2 + 5 * math.sqrt(b["rows"] / most))
        dot.set("class", "fill-1")
        add(dot, "title").text = f"score {b['mean_score']:.2f}: {b['share']:.2f} of {b['rows']:g} rows"
    return serialise(root)


def decision_plot(
    thresholds: Sequence[float], model: Sequence[float], treat_all: Sequence[float], *, title: str, identity: str
) -> str:
    """Net benefit against the threshold: the model, treating all, and treating none (zero)."""
    # 'Treat all' falls without end; what lies far below zero tells nothing.
    highest = max([0.0, *model, *treat_all])
    lowest = max(-0.5 * highest, min([0.0, *model])) if highest > 0 else min([-0.01, *model])
    ticks = nice_ticks(min(lowest, -0.1 * highest), highest or 0.01, 4)
    root, x, y = _square(
        title, "threshold", "net benefit", identity, (0.0, max([*thresholds, 1e-9])), (ticks[0], ticks[-1])
    )
    add(root, "line", x1=x(0), x2=x(max([*thresholds, 1e-9])), y1=y(0), y2=y(0), class_="zero")
    for values, style in ((treat_all, "line-0 dashed"), (model, "line-1")):
        inside = [(t, v) for t, v in zip(thresholds, values, strict=False) if v >= ticks[0]]
        if len(inside) > 1:
            path = "M" + "L".join(f"{x(t):.1f} {y(v):.1f}" for t, v in inside)
            add(root, "path", d=path, fill="none", class_=style)
    return serialise(root)


def _square(
    title: str, x_label: str, y_label: str, identity: str, xs: tuple[float, float], ys: tuple[float, float]
) -> tuple[Element, Scale, Scale]:
    """A small plot with both axes."""
    root = canvas(SMALL, SMALL * 0.86, title, f"{y_label} against {x_label}", identity)
    x, y = Scale(*xs, 44, SMALL - 10), Scale(*ys, SMALL * 0.86 - 40, 24)
    for scale, across in ((x, False), (y, True)):
        ticks = [t for t in nice_ticks(scale.low, scale.high, 4) if scale.low - 1e-9 <= t <= scale.high + 1e-9]
        step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
        for tick in ticks:
            if across:
                add(root, "line", x1=x.start, x2=x.end, y1=y(tick), y2=y(tick), class_="grid")
                text(root, 38, y(tick) + 4, tick_label(tick, step), "end", class_="tick")
            else:
                text(root, x(tick), y.start + 18, tick_label(tick, step), "middle", class_="tick")
    text(root, (x.start + x.end) / 2, SMALL * 0.86 - 6, x_label, "middle", class_="axis")
    text(root, 4, 14, y_label, class_="axis")
    return root, x, y
