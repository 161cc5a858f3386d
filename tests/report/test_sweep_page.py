from __future__ import annotations

from pathlib import Path

from farfield.report.sweep_page import write_sweep_page
from farfield.report.sweep_points import PointLine, SweepPoints


def test_the_page_of_a_sweep_loads_and_runs_nothing(tmp_path: Path) -> None:
    points = SweepPoints(
        folder=tmp_path,
        axes=({"name": "mu", "values": [0.1, 1.0], "scope": "method"},),
        metric="accuracy",
        kind="classification",
        rule="last",
        reach_metric="accuracy",
        reach=None,
        lines=tuple(PointLine("fedprox", f"fedprox:mu={mu}", {"mu": mu}, None, None, None, 0) for mu in (0.1, 1.0)),
        rows=[],
        failures=[],
        missing=(),
        links=(),
        task="toy",
    )
    page = write_sweep_page(points, tmp_path / "report.html").read_text()
    assert "<script" not in page
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
