from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from farfield.report.curves import difference_intervals, held_out_curves, validation_curves
from farfield.report.plots import WIDTH, Interval, Range, Series, colour, curves, differences
from farfield.report.svg import Scale, apart, nice_ticks, round_ticks, tick_label, wrapped
from farfield.report.tables import result_table
from tests.report.sweeps import sweep

SVG = "{http://www.w3.org/2000/svg}"


def drawn(series: list[Series], axis: Range | None = None) -> ElementTree.Element:
    axis = axis or Range.of([series])
    assert axis is not None
    text = curves(series, axis, title="t", x_label="round", y_label="accuracy, %", metric="accuracy", identity="p")
    return ElementTree.fromstring(text.svg)


def points(path: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d", ""))]


def curve_paths(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [p for g in root.iter(f"{SVG}g") if g.get("class") == "curve" for p in g.iter(f"{SVG}path")]


def tick_y(root: ElementTree.Element, label: str) -> float:
    """The height of the grid line that a tick label stands at."""
    tick = next(t for t in root.iter(f"{SVG}text") if t.get("class") == "tick" and t.text == label)
    lines = [float(e.get("y1", "nan")) for e in root.iter(f"{SVG}line")]
    return min(lines, key=lambda y: abs(y - float(tick.get("y", "nan"))))


def test_a_curve_meets_the_grid_line_of_its_value() -> None:
    root = drawn([Series("fedavg", 0, ((1, 20.0), (5, 40.0), (9, 60.0)))], Range((0.0, 20.0, 40.0, 60.0)))
    ((x1, y1), (x2, y2), (x3, y3)) = points(curve_paths(root)[0])
    assert (y1, y2, y3) == pytest.approx((tick_y(root, "20"), tick_y(root, "40"), tick_y(root, "60")), abs=0.06)
    assert y1 > y2 > y3
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11)
    assert x1 == 46.0


def test_a_round_stands_above_its_tick() -> None:
    root = drawn([Series("m", 1, ((2, 1.0), (4, 2.0), (10, 3.0)))])
    x_of = {t.text: float(t.get("x", "nan")) for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "middle"}
    path = points(curve_paths(root)[0])
    assert [x for x, _ in path] == pytest.approx([x_of["2"], x_of["4"], x_of["10"]], abs=0.06)


def test_a_band_encloses_its_curve() -> None:
    band = ((1, 10.0, 30.0), (2, 20.0, 40.0))
    root = drawn([Series("m", 1, ((1, 20.0), (2, 30.0)), band)], Range((0.0, 20.0, 40.0)))
    area = next(p for p in root.iter(f"{SVG}path") if p.get("fill-opacity"))
    y = Scale(0.0, 40.0, tick_y(root, "0"), tick_y(root, "40"))
    assert [at for _, at in points(area)] == pytest.approx([y(30), y(40), y(20), y(10)], abs=0.06)


def test_plots_say_what_they_show() -> None:
    root = drawn([Series("fed<prox> & co", 1, ((1, 50.0), (2, 71.24)))])
    named = (root.get("aria-labelledby") or "").split()
    by_id = {e.get("id"): e.text for e in root.iter() if e.get("id")}
    assert root.get("role") == "img"
    assert [by_id[i] for i in named] == ["t", "fed<prox> & co ends at 71.2"]


def test_names_at_the_ends_keep_apart_and_inside() -> None:
    series = [Series(f"method-{i}", i, ((1, 50.0), (2, 70.0 + 0.01 * i))) for i in range(8)]
    root = drawn(series)
    ys = sorted(
        float(line.get("y", "nan"))
        for t in root.iter(f"{SVG}text")
        if t.get("class") == "name"
        for line in t.iter(f"{SVG}tspan")
    )
    assert min(b - a for a, b in pairwise(ys)) >= 16 - 0.02
    assert ys[0] > 0
    assert ys[-1] < float((root.get("viewBox") or "").split()[3])


def shown_names(root: ElementTree.Element) -> list[str]:
    """The names of a plot as a reader puts their lines together."""
    names = [t for t in root.iter(f"{SVG}text") if t.get("class") == "name"]
    return ["".join(line.text or "" for line in t.iter(f"{SVG}tspan")) for t in names]


def test_long_names_are_wrapped_in_both_figures_and_never_cut() -> None:
    names = ["fediir+fedomg:kappa=0.2", "fediir+fedomg:kappa=0.5", "fedavg", "x" * 60]
    curves = drawn([Series(name, i, ((1, 1.0), (2, 2.0 + i))) for i, name in enumerate(names)])
    dots = ElementTree.fromstring(
        differences([Interval(n, 1.0, 0.5, 1.5) for n in names], title="t", x_label="x", metric="loss", identity="d")
    )
    for root in (curves, dots):
        assert sorted(shown_names(root)) == sorted(names)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("short", ["short"]),
        ("", [""]),
        ("fediir+fedomg:kappa=0.2", ["fediir+fedomg:", "kappa=0.2"]),
        ("St. Mary's hospital of the north", ["St. Mary's", "hospital of the", "north"]),
        ("x" * 20, ["x" * 16, "x" * 4]),
        ("a\x00b", [r"a\x00b"]),
    ],
)
def test_a_name_is_broken_where_its_words_end(name: str, lines: list[str]) -> None:
    assert wrapped(name, 16) == lines


def test_a_name_with_control_characters_still_gives_xml() -> None:
    assert drawn([Series("a\x00b\x1b", 1, ((1, 1.0), (2, 2.0)))]) is not None


def test_one_evaluated_round_is_a_point() -> None:
    root = drawn([Series("m", 1, ((5, 0.5),))])
    assert [e.tag for e in root.iter(f"{SVG}circle")] == [f"{SVG}circle"]


def test_a_wide_range_of_losses_is_drawn_by_powers_of_ten() -> None:
    axis = Range.of([[Series("m", 1, ((1, 900.0), (2, 0.5)))]])
    assert axis == Range((0.1, 1.0, 10.0, 100.0, 1000.0), log=True)
    root = drawn([Series("m", 1, ((1, 1000.0), (2, 10.0)))], axis)
    (_, top), (_, middle) = points(curve_paths(root)[0])
    assert (top, middle) == pytest.approx((tick_y(root, "1000"), tick_y(root, "10")), abs=0.06)


def test_nothing_to_draw_has_no_range() -> None:
    assert Range.of([[], []]) is None


def test_differences_stand_where_the_axis_says() -> None:
    rows = [
        Interval("fedprox", 2.0, -1.0, 5.0, (("art", 4.0), ("photo", 0.0))),
        Interval("scaffold", -3.0, None, None, (), beyond_chance=True),
    ]
    text = differences(rows, title="t", x_label="points", metric="accuracy", identity="d")
    root = ElementTree.fromstring(text)
    ticks = {t.text: float(t.get("x", "nan")) for t in root.iter(f"{SVG}text") if t.get("class") == "tick"}
    x = Scale(-4.0, 6.0, ticks["−4"], ticks["6"])
    dots = {c.findtext(f"{SVG}title"): c for c in root.iter(f"{SVG}circle")}
    assert float(dots["fedprox: +2.0"].get("cx", "nan")) == pytest.approx(x(2.0), abs=0.01)
    assert float(dots["scaffold: −3.0"].get("cx", "nan")) == pytest.approx(x(-3.0), abs=0.01)
    assert float(dots["art: +4.0"].get("cx", "nan")) == pytest.approx(x(4.0), abs=0.01)
    assert dots["scaffold: −3.0"].get("class") == "dot beyond"
    assert dots["fedprox: +2.0"].get("class") == "dot"
    (line,) = [e for e in root.iter(f"{SVG}line") if e.get("class") == "interval"]
    assert [float(line.get(k, "nan")) for k in ("x1", "x2")] == pytest.approx([x(-1.0), x(5.0)], abs=0.01)
    (zero,) = [e for e in root.iter(f"{SVG}line") if e.get("class") == "zero"]
    assert float(zero.get("x1", "nan")) == pytest.approx(ticks["0"])
    assert ticks["6"] < WIDTH


def test_colours_repeat_only_with_another_dash() -> None:
    assert colour(0) == "var(--series-0,#4d4d4d)"
    assert colour(1) == colour(7) == "var(--series-1,#0072b2)"
    root = drawn([Series(f"m{i}", i, ((1, float(i)), (2, float(i)))) for i in range(1, 14)])
    looks = [(p.get("style"), p.get("stroke-dasharray")) for p in curve_paths(root)]
    assert len(set(looks)) == 13


def test_curves_are_averaged_over_domains_with_a_band_over_seeds() -> None:
    of = sweep({"fedavg": {"x": [0.4, 0.6], "y": [0.6, 1.0]}})
    (held_out,) = held_out_curves(of)
    # seeds' means over domains in round 20: 0.5 and 0.8, so 0.65 ± 0.2121
    assert held_out.points == ((10, pytest.approx(32.5)), (20, pytest.approx(65.0)))
    assert held_out.band[1] == (20, pytest.approx(65.0 - 21.2132), pytest.approx(65.0 + 21.2132))
    (validation,) = validation_curves(of)
    assert validation.points[1] == (20, pytest.approx(75.0))


def test_a_round_in_which_a_run_diverged_is_not_averaged() -> None:
    of = sweep({"fedavg": {"x": [2.0], "y": [3.0]}, "fedprox": {"x": [2.0], "y": [None]}}, "regression")
    of.curves[0].target.append((30, {"rmse": 1.0}))
    assert [s.name for s in held_out_curves(of)] == ["fedavg"]
    assert held_out_curves(of)[0].points == ((10, 1.25), (20, 2.5))
    assert held_out_curves(of)[0].band == ()


def test_differences_of_a_table_are_in_points() -> None:
    of = sweep({"fedavg": {d: [0.5] for d in "xyz"}, "fedprox": {"x": [0.51], "y": [0.52], "z": [0.53]}})
    (interval,) = difference_intervals(result_table(of, "last"))
    assert interval.mean == pytest.approx(2.0)
    assert dict(interval.marks) == pytest.approx({"x": 1.0, "y": 2.0, "z": 3.0})


def test_ticks_are_round_and_cover_the_range() -> None:
    assert nice_ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert nice_ticks(13.0, 88.0) == pytest.approx([0, 20, 40, 60, 80, 100])
    assert nice_ticks(5.0, 5.0)[0] <= 5.0 <= nice_ticks(5.0, 5.0)[-1]
    assert len(nice_ticks(0.0, 0.0)) > 1
    nearly = nice_ticks(16.666666666666664, 16.666666666666668)
    assert nearly[0] < 16.6 < 16.7 < nearly[-1]
    assert all(tick_label(tick, nearly[1] - nearly[0]) for tick in nearly)
    assert round_ticks(1, 30) == [10, 20, 30]
    assert round_ticks(3, 3) == [3]
    assert [tick_label(t, 0.5) for t in (-0.5, 0.0, 1.5)] == ["−0.5", "0.0", "1.5"]


def test_labels_move_as_little_as_they_must() -> None:
    assert apart([10, 50], 16, 0, 100) == [10, 50]
    assert apart([50, 50], 16, 0, 100) == [42, 58]
    assert apart([58, 42], 16, 0, 100) == [58, 42]
    assert apart([99, 99], 16, 0, 100) == [84, 100]
    assert apart([], 16, 0, 100) == []
    # Sizes 10, 30 and 10: the middle one keeps 20 from both neighbours.
    assert apart([50, 50, 50], [10, 30, 10], 0, 100) == [30, 50, 70]
