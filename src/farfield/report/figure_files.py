"""Every figure of a report as files: SVG that carries its own style, and PNG by `resvg` where it is installed."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from farfield.errors import UserError
from farfield.records.atomic import write_atomic
from farfield.report.collect import Sweep
from farfield.report.figures import (
    Figure,
    available_metrics,
    cost_figures,
    curve_figures,
    difference_figure,
    new_site_figure,
    prior_figure,
)
from farfield.report.findings import answer, main_rule
from farfield.report.sites import panels, site_grid
from farfield.report.tables import result_table

#: Pixels per unit of a drawing in PNG files: sharp in print at two columns.
ZOOM = 3
_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def all_figures(sweep: Sweep, rule: str | None = None, metric: str | None = None) -> list[Figure]:
    """Return every figure of the page that could be drawn, those behind its switches too."""
    rule = rule or main_rule(sweep.plan)
    table = result_table(sweep, rule, metric)
    found = answer(sweep, table)
    chosen = next((line for line in table.lines if line.algorithm == found.recommended), None)
    figures = [
        new_site_figure(sweep, table, chosen),
        prior_figure(table),
        difference_figure(table),
        *curve_figures(sweep, available_metrics(sweep)),
        *cost_figures(sweep, table.metric),
    ]
    if found.recommended is not None and site_grid(sweep, rule, found.recommended) is not None:
        for panel in panels(sweep, rule, found.recommended):
            for i, (svg, caption) in enumerate(panel.figures):
                figures.append(Figure(f"{panel.identity}-{i + 1}", f"{panel.site}: {caption}", svg))
    return [figure for figure in figures if figure is not None and figure.svg is not None]


def write_figures(sweep: Sweep, folder: Path, rule: str | None = None, metric: str | None = None) -> list[Path]:
    """Write every figure as SVG and as PNG into a folder and return the files."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file; name a folder for the figures")
    figures = all_figures(sweep, rule, metric)
    if not figures:
        raise UserError("no run has finished, so there is no figure to write yet")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures:
        svg = standalone(figure.svg or "")
        for suffix, content in ((".svg", svg.encode()), (".png", png(svg))):
            path = folder / f"{figure.name}{suffix}"
            write_atomic(path, content)
            written.append(path)
    return written


def standalone(svg: str) -> str:
    """Return a drawing of the page as a file of its own: light colours, its style inside, a size and a white ground."""
    colours, rules = _style()
    svg = re.sub(r"var\(--([\w-]+)(?:,[^)]*)?\)", lambda match: colours[match.group(1)], svg)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    width, height = size.groups()
    style = f'<style>{rules}</style><rect width="{width}" height="{height}" fill="{colours["ground"]}" />'
    root = f'width="{width}" height="{height}" color="{colours["ink"]}" viewBox='
    head, body = svg.replace("viewBox=", root, 1).replace("inherit", _FONTS, 1).split(">", 1)
    return f"{head}>{style}{body}\n"


def png(svg: str) -> bytes:
    """Return a drawing as PNG."""
    try:
        import resvg_py
    except ImportError as error:
        raise UserError("PNG figures need 'resvg-py'; install farfield[report], or take the SVG files") from error
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=ZOOM, background="#ffffff"))


@cache
def _style() -> tuple[dict[str, str], str]:
    """The page's light colours by name, and the rules of its style sheet that are about drawings."""
    folder = files("farfield.report") / "templates"
    first = (folder / "report.css").read_text(encoding="utf-8").split("}", 1)[0]
    colours = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-fA-F]+)", first))
    lines = (folder / "figures.css").read_text(encoding="utf-8").splitlines()
    rules = " ".join(line for line in lines if line.startswith("svg .") and ":hover" not in line)
    return colours, re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match.group(1)], rules)
