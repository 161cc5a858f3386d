"""Each held-out site by itself: rows, events, ranking, calibration, net benefit, confusion.

A site has one set of figures per seed. Numbers are means over seeds; the bins of a calibration curve are pooled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from farfield.report.collect import Sweep
from farfield.report.formats import MISSING, interval, metric_value, number, plural, public
from farfield.report.grid import Cell, Column, Grid
from farfield.report.site_plots import calibration_plot, decision_plot

#: More sites than this get no panel each; the table has them all.
MOST_PANELS = 24
#: Classes whose confusion matrix is shown cell by cell.
MOST_CLASSES = 12


@dataclass(frozen=True)
class Panel:
    """What the page shows of one site under one method."""

    site: str
    identity: str
    facts: tuple[tuple[str, str], ...]
    figures: tuple[tuple[str, str], ...]
    confusion: Grid | None
    remarks: tuple[str, ...]


def site_figures_of(sweep: Sweep, rule: str, method: str) -> dict[str, list[dict[str, Any]]]:
    """The recorded figures of a method per held-out domain, one per seed; a domain without any is left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sweep.rows:
        site = row["selection"].get(rule, {}).get("site") if row["algorithm"] == method else None
        if site:
            found.setdefault(row["held_out"], []).append(site)
    return {domain: found[domain] for domain in sweep.plan["held_out"] if domain in found}


def site_grid(sweep: Sweep, rule: str, method: str) -> Grid | None:
    """One line per site of a method; None where its runs recorded no such figures."""
    sites = site_figures_of(sweep, rule, method)
    if not sites:
        return None
    rows = []
    for name, of in sites.items():
        auroc = _part(of, "auroc")
        value, low, high = (_mean(auroc, key) for key in ("value", "low", "high"))
        calibration = _part(of, "calibration")
        slope, intercept, brier = _mean(calibration, "slope"), _mean(calibration, "intercept"), _mean(of, "brier")
        cells = [
            Cell(name, _thin(of)),
            _count(_mean(of, "rows")),
            _count(_mean(of, "events")),
            Cell(metric_value("auroc", value), interval("auroc", low, high, value or 0.0), value=value),
            Cell(number(slope), value=slope),
            Cell(number(intercept), value=intercept),
            Cell(metric_value("brier", brier), value=brier),
        ]
        rows.append(tuple(Cell(c.text, c.detail, "missing") if c.text == MISSING else c for c in cells))
    seeds = max(len(of) for of in sites.values())
    columns = (
        Column("site", text=True, term="held-out"),
        Column("rows"),
        Column("events"),
        Column("AUROC", "[95 %]", term="auroc"),
        Column("slope", "1 is perfect", term="calibration"),
        Column("intercept", "0 is perfect"),
        Column("Brier score", term="brier"),
    )
    notes = [f"{method}. Means over {plural(seeds, 'seed')}; the interval is over the rows of that site."]
    notes.append("Events are rows of class 1 where there are two classes. –: not defined there, or too few rows.")
    used = [i for i in range(len(columns)) if i < 2 or any(row[i].text != MISSING for row in rows)]
    return Grid(
        f"Sites under {method}",
        tuple(columns[i] for i in used),
        tuple(tuple(row[i] for i in used) for row in rows),
        tuple(notes),
    )


def panels(sweep: Sweep, rule: str, method: str) -> list[Panel]:
    """A panel per site of a method, in the order of the plan; empty where its runs recorded no such figures."""
    sites = list(site_figures_of(sweep, rule, method).items())[:MOST_PANELS]
    return [_panel(sweep, i, name, of) for i, (name, of) in enumerate(sites)]


def _calibration_labels(sweep: Sweep) -> tuple[str, str]:
    """What a calibration curve compares: scores of one class, the top score, or predicted numbers."""
    if sweep.plan["kind"] == "regression":
        return "mean prediction", "mean label"
    classes = () if sweep.data is None else sweep.data.classes
    if len(classes) > 2:
        return "mean top score", "share right"
    return "mean score", f"share of '{public(classes[1])}'" if len(classes) == 2 else "share of class 1"


def _panel(sweep: Sweep, place: int, name: str, of: Sequence[Mapping[str, Any]]) -> Panel:
    identity = f"site-{place}"
    auroc, calibration = _part(of, "auroc"), _part(of, "calibration")
    value, low, high = (_mean(auroc, key) for key in ("value", "low", "high"))
    slope, intercept, brier = _mean(calibration, "slope"), _mean(calibration, "intercept"), _mean(of, "brier")
    facts = [("rows", _count(_mean(of, "rows")).text)]
    for label, text in (
        ("events", _count(_mean(of, "events")).text),
        ("AUROC", f"{metric_value('auroc', value)} {interval('auroc', low, high, value or 0.0)}".strip()),
        ("calibration slope", number(slope)),
        ("intercept", number(intercept)),
        ("Brier score", metric_value("brier", brier)),
        ("support", _support(of)),
    ):
        if not text.startswith(MISSING) and text:
            facts.append((label, text))
    figures = []
    bins = _pooled_bins([c.get("bins") or [] for c in calibration])
    if bins:
        regression = sweep.plan["kind"] == "regression"
        svg = calibration_plot(
            bins,
            title=f"Calibration on {name}",
            identity=f"{identity}-calibration",
            labels=_calibration_labels(sweep),
            shares=not regression,
        )
        figures.append((svg, "Calibration: on the diagonal, scores mean what they say. Larger dots: more rows."))
    decision = [d for d in _part(of, "decision") if d.get("thresholds")]
    if decision:
        thresholds, model, treat_all = (_columns(decision, key) for key in ("thresholds", "net_benefit", "treat_all"))
        svg = decision_plot(
            thresholds, model, treat_all, title=f"Decision curve on {name}", identity=f"{identity}-decision"
        )
        figures.append((svg, "Decision curve: the model (solid), treating all (dashed), treating none (zero)."))
    remarks = [text for text in (_thin(of), _unseen(of)) if text]
    return Panel(name, identity, tuple(facts), tuple(figures), _confusion(sweep, of), tuple(remarks))


def _confusion(sweep: Sweep, of: Sequence[Mapping[str, Any]]) -> Grid | None:
    matrices = [site["confusion"] for site in of if site.get("confusion")]
    if not matrices or len(matrices[0]) > MOST_CLASSES:
        return None
    size = len(matrices[0])
    classes = list(sweep.data.classes) if sweep.data is not None else []
    names = [public(name) for name in classes] if len(classes) == size else [str(i) for i in range(size)]
    columns = (Column("truth ↓, answer →", text=True), *(Column(name) for name in names))
    rows = []
    for i, name in enumerate(names):
        means = [fmean(float(matrix[i][j]) for matrix in matrices) for j in range(size)]
        shown = [f"{mean:,.0f}" if len(matrices) == 1 else f"{mean:,.1f}" for mean in means]
        rows.append((Cell(name), *(Cell(text, value=mean) for text, mean in zip(shown, means, strict=True))))
    return Grid("Confusion matrix", columns, tuple(rows))


def _pooled_bins(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, float]]:
    """The bins of all seeds as one curve: the first bins together, the second, and so on, each weighted by its rows.

    Bins hold equal parts of the rows, so their edges differ between seeds and their places do not. Seeds with another
    number of bins than the first are left out.
    """
    alike = [bins for bins in runs if len(bins) == len(runs[0])]
    result = []
    for of in zip(*alike, strict=True):
        known = [b for b in of if b.get("rows") and b.get("mean_score") is not None and b.get("share") is not None]
        rows = sum(b["rows"] for b in known)
        if rows:
            result.append(
                {
                    "rows": rows / len(alike),
                    "mean_score": sum(b["rows"] * b["mean_score"] for b in known) / rows,
                    "share": sum(b["rows"] * b["share"] for b in known) / rows,
                }
            )
    return result


def _part(of: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    return [site[key] for site in of if isinstance(site.get(key), Mapping)]


def _mean(of: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean over the seeds that have the number; None where none has."""
    known = [float(site[key]) for site in of if isinstance(site.get(key), int | float)]
    return fmean(known) if known else None


def _columns(of: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    lists = [site[key] for site in of if site.get(key)]
    return [fmean(column) for column in zip(*lists, strict=False)]


def _count(value: float | None) -> Cell:
    return Cell(MISSING, tone="missing") if value is None else Cell(f"{value:,.0f}", value=value)


def _support(of: Sequence[Mapping[str, Any]]) -> str:
    classes = of[0].get("classes") or {}
    return ", ".join(f"{public(str(name))} {count:,}" for name, count in classes.items()) if len(classes) > 2 else ""


def _thin(of: Sequence[Mapping[str, Any]]) -> str:
    return next((public(str(site["too_thin"])) for site in of if site.get("too_thin")), "")


def _unseen(of: Sequence[Mapping[str, Any]]) -> str:
    unseen = of[0].get("unseen") or {}
    named = ", ".join(f"{public(str(name))} ({plural(int(rows), 'row')})" for name, rows in unseen.items())
    return f"Classes that no training domain has: {named}." if named else ""
