"""Tables and figures as files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from farfield.errors import UserError
from farfield.report.figure_files import standalone, write_figures
from farfield.report.grid import Cell, Column, Grid
from farfield.report.latex import as_latex, latex
from farfield.report.table_files import as_csv, tables, write_table
from tests.report.sweeps import sweep
from tests.report.test_tables import THREE_DOMAINS


def test_csv_has_full_precision_and_one_line_per_method(tmp_path: Path) -> None:
    text = write_table(sweep(THREE_DOMAINS), tmp_path / "t.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["algorithm"] for row in rows] == ["fedavg", "fedprox", "scaffold"]
    # (0.53 + 0.73) / 2, 0.72 and (0.71 + 0.91) / 2, and their mean
    assert float(rows[1]["mean"]) == pytest.approx((0.63 + 0.72 + 0.81) / 3, abs=1e-12)
    assert float(rows[2]["difference"]) == pytest.approx(-0.11, abs=1e-12)


def test_no_cell_of_a_csv_is_a_formula() -> None:
    record = {"=name": "=1+1", "plus": "+a", "minus": "-b", "at": "@c", "number": "-1.5", "value": -2.0, "text": "a=b"}
    header, row = csv.reader(io.StringIO(as_csv([record])))
    assert header[0] == "'=name"
    assert row == ["'=1+1", "'+a", "'-b", "'@c", "-1.5", "-2.0", "a=b"]


def test_json_has_the_same_numbers_and_the_notes(tmp_path: Path) -> None:
    content = json.loads(write_table(sweep(THREE_DOMAINS), tmp_path / "t.json", "cost").read_text())
    assert [row["local_steps"] for row in content["rows"]] == [1200, 1200, 1200]
    assert content["title"] == "Cost of a run"
    assert any("Times are of this machine" in note for note in content["notes"])


def test_latex_has_a_rule_above_and_below_and_as_many_cells_in_every_line(tmp_path: Path) -> None:
    text = write_table(sweep(THREE_DOMAINS), tmp_path / "t.tex").read_text()
    body = text[text.index("\\midrule") : text.index("\\bottomrule")].splitlines()[1:]
    head = text[text.index("\\toprule") : text.index("\\midrule")].splitlines()[1]
    assert len(body) == 3
    assert {line.replace("\\&", "").count("&") for line in [head, *body]} == {head.count("&")}
    assert all(line.endswith(r" \\") for line in body)
    assert body[0].startswith("fedavg & 70.0 ")
    assert r"$-$11.0" in body[2]


def test_nothing_in_a_name_is_a_command_of_latex() -> None:
    assert as_latex("a_b & 5% of {x}^2 ~ $1 #2 \\end") == (
        r"a\_b \& 5\% of \{x\}\textasciicircum{}2 \textasciitilde{} \$1 \#2 \textbackslash{}end"
    )
    grid = Grid("t", (Column("m", text=True), Column("n")), ((Cell("a"), Cell("[1, 2]")),))
    assert r"a & {[1, 2]} \\" in latex(grid)


def test_markdown_is_what_the_table_prints(tmp_path: Path) -> None:
    of = sweep(THREE_DOMAINS)
    assert write_table(of, tmp_path / "t.md", "fairness").read_text() == tables(of)["fairness"].markdown()


def test_an_unknown_table_or_format_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no table 'result'; it has results, metrics, fairness, cost"):
        write_table(sweep(THREE_DOMAINS), tmp_path / "t.md", "result")
    with pytest.raises(UserError, match=r"end it with one of \.csv, \.json, \.md, \.tex"):
        write_table(sweep(THREE_DOMAINS), tmp_path / "t.xlsx")


def test_a_bench_without_results_still_has_tables_and_no_figure(tmp_path: Path) -> None:
    of = sweep({"fedavg": {"x": []}}, seeds=[0], missing=1)
    assert "fedavg" in write_table(of, tmp_path / "t.md").read_text()
    with pytest.raises(UserError, match="no run has finished"):
        write_figures(of, tmp_path / "figures")


def test_every_figure_is_written_as_svg_and_as_png_of_the_same_shape(tmp_path: Path) -> None:
    written = write_figures(sweep(THREE_DOMAINS), tmp_path / "figures")
    names = {path.stem for path in written}
    assert {"differences", "held-out-accuracy", "validation-accuracy", "against-bytes", "against-steps"} <= names
    assert len(written) == 2 * len(names)
    for name in names:
        root = ElementTree.parse(tmp_path / "figures" / f"{name}.svg").getroot()
        size = [float(root.get(key, "nan")) for key in ("width", "height")]
        with Image.open(tmp_path / "figures" / f"{name}.png") as image:
            assert image.size == pytest.approx([3 * side for side in size], abs=1)
            # A white ground with ink on it.
            assert image.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
            low, high = image.convert("L").getextrema()
            assert low < 100
            assert high == 255


def test_a_drawing_on_its_own_needs_no_style_sheet() -> None:
    svg = standalone('<svg viewBox="0 0 10 20" font-family="inherit"><path style="stroke:var(--series-1,#fff)"/></svg>')
    assert "var(" not in svg
    assert "stroke:#0072b2" in svg
    assert 'width="10" height="20"' in svg
