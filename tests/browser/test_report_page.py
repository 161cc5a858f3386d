from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Literal

import pytest

from farfield.diagnose.data_summary import DataSummary, DomainSummary
from farfield.report.page import write_report
from tests.browser.chromium import Chromium, executable
from tests.report.sweeps import sweep

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(executable() is None, reason="there is no Chromium on this machine"),
]

LONG = "a-hospital-whose-name-goes-on-and-on-without-any-place-to-break-it" * 2
WIDTHS = (390, 1280)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that is hardest to fit: twenty domains, long names, many methods, failures."""
    domains = ["<script>document.title='run'</script>", LONG, *(f"site {i}" for i in range(18))]
    methods = ["fedavg", "fedprox", "scaffold", LONG, *(f"method-{i}" for i in range(6))]
    scores = {m: {d: [0.5 + 0.01 * i, 0.6 + 0.01 * i] for d in domains} for i, m in enumerate(methods)}
    failures = [{"algorithm": "scaffold", "held_out": LONG, "seed": 0, "error": f"ValueError: {LONG} {LONG}"}]
    path = tmp_path_factory.mktemp("page") / "report.html"
    sizes = tuple(DomainSummary(name=name, rows=10 + i, counts=(4, 6 + i)) for i, name in enumerate(domains))
    data = DataSummary(task=LONG, kind="classification", classes=(LONG, "no"), domains=sizes, shape=(8,), columns=5)
    made = replace(sweep(scores, task=LONG, failures=failures, notes=[f"column '{LONG}' was left out"]), data=data)
    return write_report(made, path, today=date(2026, 3, 4))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "report.html"
    return write_report(sweep({"fedavg": {"art": [0.5]}}), path, today=date(2026, 3, 4))


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_does_not_scroll_sideways(
    browser: Chromium, report: Path, small: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    for page in (report, small):
        browser.open(page, width, scheme=scheme)
        root = "document.documentElement"
        assert browser.evaluate(f"{root}.clientWidth") == width
        assert browser.evaluate(f"{root}.scrollWidth") <= width
        shot = browser.screenshot()
        assert size(shot) == (width, browser.evaluate(f"{root}.scrollHeight"))
        assert len(shot) > 10_000


def test_wide_tables_scroll_in_their_own_box_and_keep_the_method_in_sight(browser: Chromium, report: Path) -> None:
    browser.open(report, 375)
    box = "document.querySelector('#results .scroll')"
    assert browser.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    browser.evaluate(f"{box}.scrollLeft = 600")
    left = f"{box}.querySelector('tbody th').getBoundingClientRect().left - {box}.getBoundingClientRect().left"
    assert abs(browser.evaluate(left)) <= 2


def test_dark_and_light_follow_the_reader(browser: Chromium, small: Path) -> None:
    shade = "getComputedStyle(document.body)[{!r}].match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b, 0)"
    seen = {}
    for scheme in SCHEMES:
        browser.open(small, 375, scheme=scheme)
        seen[scheme] = [browser.evaluate(shade.format(name)) for name in ("backgroundColor", "color")]
    assert seen["light"][0] > 700
    assert seen["light"][1] < 150
    assert seen["dark"][0] < 150
    assert seen["dark"][1] > 600


def test_paper_is_white_also_for_readers_of_dark_pages(browser: Chromium, small: Path) -> None:
    browser.open(small, 800, scheme="dark", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_page_runs_its_own_script_alone_and_asks_for_nothing(browser: Chromium, report: Path) -> None:
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(report, 1280)
    assert browser.evaluate("document.title").endswith(": results on unseen domains")
    assert browser.evaluate("[...document.scripts].filter(s => s.type !== 'application/json').length") == 1
    assert {url.split(":")[0] for url in browser.requests} == {"file"}
    assert len(browser.requests) == 1
    assert browser.complaints == []


def test_text_in_plots_stays_legible_on_a_phone(browser: Chromium, report: Path) -> None:
    browser.open(report, 375)
    heights = browser.evaluate("[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)")
    assert min(heights) >= 9
    beyond = "[...document.querySelectorAll('svg text')].filter(t => t.getBoundingClientRect().right > 375).length"
    assert browser.evaluate(beyond) == 0
