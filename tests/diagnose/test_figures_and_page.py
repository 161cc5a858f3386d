"""Pictures and page of a diagnosis: valid, complete, and safe with other people's names."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

import farfield as ff
from farfield.diagnose.diagnosis import diagnose
from farfield.diagnose.figures import figure
from farfield.diagnose.page import page
from studies.diagnose_alarms import domain, near_duplicates

NAME = "<script>alert('x')</script> & a hospital with a name that is long"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_each_finding_has_a_picture_with_its_numbers_and_whole_names() -> None:
    draw = np.random.default_rng(0)
    task = ff.task_from_arrays("t", {NAME: domain(draw, 40), "b\x07": domain(draw, 40, angle=90)})
    found = diagnose(task, quick=True)
    for kind in ("label shift", "feature shift", "concept shift", "gradient conflict"):
        svg = figure(found[kind])
        assert svg is not None
        assert NAME in texts(svg)
        assert "currentColor" in svg
    assert f"{found['feature shift'].details['pairs'][0][1]:.2f}" in texts(figure(found["feature shift"]) or "")
    cosine = f"{found['gradient conflict'].details['to_others'][0]:.2f}".replace("-", "\N{MINUS SIGN}")
    assert cosine in texts(figure(found["gradient conflict"]) or "")
    assert figure(found["near-duplicates"]) is None  # nothing was found, so there is nothing to draw
    copies = diagnose(near_duplicates(0), quick=True)["near-duplicates"]
    assert str(round(copies.details["pairs"][0][1])) in texts(figure(copies) or "")
    assert len(texts(figure(found["domain leak"]) or "")) == 2 * len(found["domain leak"].details["columns"])


def test_the_page_needs_nothing_else_and_escapes_names(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    numbers = {
        NAME: (draw.standard_normal((30, 3)), draw.standard_normal(30)),
        "b": (np.ones((30, 3)), np.arange(30.0)),
    }
    html = page(diagnose(ff.task_from_arrays("<b>t</b>", numbers), quick=True))
    assert "<script" not in html
    assert "<b>" not in html
    assert not re.search(r"(src|href)=", html)
    assert html.count("<section>") == html.count("</section>") == 7
    for line in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        ElementTree.fromstring(line)
