"""The page of a sweep: one self-contained HTML file with its figures and its table."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader

from farfield.records.atomic import write_atomic
from farfield.report.formats import metric_label, printable
from farfield.report.sweep_plots import sweep_figures
from farfield.report.sweep_points import SweepPoints


def write_sweep_page(points: SweepPoints, path: Path) -> Path:
    """Write the page, and return where it is."""
    names = " and ".join(axis["name"] for axis in points.axes)
    environment = Environment(loader=PackageLoader("farfield.report"), autoescape=True)
    page = environment.get_template("sweep.html.j2").render(
        title=f"{points.task}: a sweep over {names}",
        lead=f"{metric_label(points.metric, points.kind)} on domains that took no part in the training, at every point "
        "of the sweep. Error bars are 95 % intervals over held-out domains (over seeds where there is one). A dashed, "
        "flat line is a method that does not have the parameter.",
        figures=sweep_figures(points),
        grid=points.grid(),
        links=points.links,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, printable(page).encode())
    return path
