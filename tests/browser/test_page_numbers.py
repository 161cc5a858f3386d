"""What the page shows in a real browser against what a second reader computes from the records."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from farfield.report.collect import collect
from farfield.report.page import write_report
from tests.browser.bench_records import DOMAINS, METHODS, ROUNDS, RULES, SEEDS, read_records, write_bench
from tests.browser.chromium import Chromium, executable

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(executable() is None, reason="there is no Chromium on this machine"),
]

PERCENT = {"accuracy": True, "auroc": False, "loss": False}
ROWS = """[...document.querySelectorAll('[data-table="results"] tbody tr')].map(
    row => [...row.cells].map(cell => cell.querySelector('span').textContent))"""
HEADS = """[...document.querySelectorAll('[data-table="results"] thead span')].map(span => span.textContent)"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bench(tmp_path_factory.mktemp("numbers") / "bench")


@pytest.fixture(scope="module")
def browser(bench: Path) -> Iterator[Chromium]:
    write_report(collect(bench, "test"), bench / "report.html", today=date(2026, 3, 4))
    with Chromium() as chromium:
        yield chromium
        assert chromium.complaints == []
        assert {url.split(":")[0] for url in chromium.requests} == {"file"}


def chosen(bench: Path, rule: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The held-out metrics of the round that a rule chooses, for each run."""
    target, source = read_records(bench)
    rounds = {}
    for run, by_round in target.items():
        if rule == "last":
            rounds[run] = max(by_round)
        elif rule == "oracle":
            rounds[run] = max(by_round, key=lambda r: by_round[r]["accuracy"])
        else:
            means = {r: fmean(of["accuracy"] for of in domains.values()) for r, domains in source[run].items()}
            rounds[run] = max(means, key=means.__getitem__)
    return {run: by_round[rounds[run]] for run, by_round in target.items()}


def shown(metric: str, value: float, digits: int = 4) -> str:
    """A value as a table prints it."""
    if PERCENT[metric]:
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if metric == "auroc" else f"{value:.{digits}f}"


def switch(browser: Chromium, name: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const s = document.querySelector('[data-switch=\"{name}\"]'); s.value = {value!r}; "
        "s.dispatchEvent(new Event('change')); })()"
    )


def test_every_switch_shows_the_numbers_of_the_records(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 1280)
    for rule in RULES:
        results = chosen(bench, rule)
        for metric in PERCENT:
            switch(browser, "rule", rule)
            switch(browser, "metric", metric)
            heads, rows = browser.evaluate(HEADS), browser.evaluate(ROWS)
            assert [row[0] for row in rows] == list(METHODS)
            means = {}
            for row in rows:
                cells = dict(zip(heads, row, strict=True))
                by_domain = {d: fmean(results[row[0], d, seed][metric] for seed in SEEDS) for d in DOMAINS}
                means[row[0]] = fmean(by_domain.values())
                assert cells["mean"] == shown(metric, means[row[0]]), (rule, metric, row[0])
                assert [cells[d] for d in DOMAINS] == [shown(metric, value) for value in by_domain.values()]
                worst = (max if metric == "loss" else min)(by_domain.values())
                assert cells["worst domain"] == shown(metric, worst)
                if row[0] != "fedavg":
                    difference = shown(metric, abs(means[row[0]] - means["fedavg"]))
                    assert cells["vs fedavg"].lstrip("+\N{MINUS SIGN}")[:4] == difference[:4]


def test_the_spread_below_a_number_is_over_seeds(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 1280)
    results = chosen(bench, "source-validation")
    small = browser.evaluate(
        """[...document.querySelectorAll('[data-table="results"] tbody tr')].map(r => r.cells[r.cells.length - 1]
        .querySelector('small').textContent)"""
    )
    for method, text in zip(METHODS, small, strict=True):
        assert text == f"±{100 * stdev(results[method, 'west', seed]['accuracy'] for seed in SEEDS):.1f}"


def test_a_click_on_a_heading_sorts_by_the_numbers_and_a_second_one_turns_it_round(
    browser: Chromium, bench: Path
) -> None:
    browser.open(bench / "report.html", 1280)
    button = """document.querySelectorAll('[data-table="results"] thead .sort')[1]"""
    for order, way in (("descending", True), ("ascending", False)):
        browser.evaluate(f"{button}.click()")
        assert browser.evaluate(f"{button}.closest('th').getAttribute('aria-sort')") == order
        means = [float(row[1]) for row in browser.evaluate(ROWS)]
        assert means == sorted(means, reverse=way)
    assert sorted(row[0] for row in browser.evaluate(ROWS)) == sorted(METHODS)


def test_sites_show_the_means_over_seeds_of_what_was_recorded(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 1280)
    results = chosen(bench, "source-validation")
    for method in (METHODS[0], METHODS[2]):
        switch(browser, "site-method", method)
        rows = browser.evaluate(
            """[...document.querySelectorAll('[data-table="sites"] tbody tr')].map(
            row => [...row.cells].map(cell => cell.querySelector('span').textContent))"""
        )
        for domain, row in zip(DOMAINS, rows, strict=True):
            sites = [results[method, domain, seed]["site"] for seed in SEEDS]
            assert row[:3] == [domain, "100", "40"]
            assert row[3] == f"{fmean(site['auroc']['value'] for site in sites):.3f}"
            assert float(row[4]) == pytest.approx(fmean(s["calibration"]["slope"] for s in sites), rel=5e-3)
            assert row[6] == f"{fmean(site['brier'] for site in sites):.3f}"
    assert browser.evaluate("document.querySelectorAll('#sites .panel svg').length") == 2 * len(DOMAINS)


def test_pointing_at_a_curve_tells_the_values_of_that_round(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 1280)
    target, _ = read_records(bench)
    svg = "document.querySelector('[data-figure=\"held-out-accuracy\"] svg')"
    browser.evaluate(f"{svg}.scrollIntoView({{block: 'center'}})")
    box = browser.evaluate(f"(b => [b.left, b.top, b.width, b.height])({svg}.getBoundingClientRect())")
    browser.point(box[0] + 0.12 * box[2], box[1] + box[3] / 2)
    assert browser.evaluate("document.querySelector('#tip b').textContent") == "round 1"
    seen = dict(
        browser.evaluate("[...document.querySelectorAll('#tip tr')].map(r => [...r.cells].map(c => c.textContent))")
    )
    for method in METHODS:
        mean = fmean(fmean(target[method, d, seed][1]["accuracy"] for seed in SEEDS) for d in DOMAINS)
        assert seen[method] == f"{100 * mean:.1f}"


def test_curves_are_read_by_keyboard_and_said_aloud(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 390)
    target, _ = read_records(bench)
    svg = "document.querySelector('[data-figure=\"held-out-accuracy\"] svg')"
    browser.evaluate(f"{svg}.focus()")
    browser.press_key("Home", 36)
    said = browser.evaluate("document.getElementById('said').textContent")
    method = said.rsplit(": ", 1)[0]
    mean = fmean(fmean(target[method, d, seed][1]["accuracy"] for seed in SEEDS) for d in DOMAINS)
    assert said == f"{method}: {100 * mean:.1f}, round 1"
    for _ in range(ROUNDS):
        browser.press_key("ArrowRight", 39)
    assert browser.evaluate("document.getElementById('said').textContent").endswith(f"round {ROUNDS}")
    browser.press_key("Escape", 27)
    assert browser.evaluate("document.getElementById('tip').hidden")


def test_a_term_is_explained_by_keyboard_where_it_stands(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 390)
    browser.evaluate("document.querySelector('.answer .term[popovertarget=\"term-beyond-chance\"]').focus()")
    browser.press_key("Enter", 13, "\r")
    card = "document.getElementById('term-beyond-chance')"
    assert browser.evaluate(f"{card}.matches(':popover-open')")
    assert "1 time in 20" in browser.evaluate(f"{card}.textContent")
    box = browser.evaluate(f"(b => [b.left, b.right, b.top, b.bottom])({card}.getBoundingClientRect())")
    assert 0 <= box[0] < box[1] <= 390
    assert 0 <= box[2] < box[3] <= browser.evaluate("innerHeight")
    browser.press_key("Escape", 27)
    assert not browser.evaluate(f"{card}.matches(':popover-open')")


def downloaded(browser: Chromium) -> str:
    """The text that a click on a download made; the browser reads it a moment later."""
    deadline = time.monotonic() + 10.0
    while (text := browser.evaluate("window.got")) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert isinstance(text, str)
    return text.lstrip("\ufeff")


def test_a_table_is_downloaded_as_csv_with_the_numbers_behind_it(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 1280)
    browser.evaluate(
        "URL.createObjectURL = blob => { blob.text().then(text => { window.got = text; }); return 'data:,'; }"
    )
    browser.evaluate("""document.querySelector('[data-table="results"] .download').click()""")
    rows = list(csv.DictReader(io.StringIO(downloaded(browser))))
    results = chosen(bench, "source-validation")
    for row in rows:
        mean = fmean(fmean(results[row["method"], d, s]["accuracy"] for s in SEEDS) for d in DOMAINS)
        assert float(row["mean"]) == pytest.approx(mean, abs=1e-8)


def test_no_cell_of_a_downloaded_table_is_a_formula(browser: Chromium, bench: Path) -> None:
    browser.open(bench / "report.html", 1280)
    browser.evaluate(
        "URL.createObjectURL = blob => { blob.text().then(text => { window.got = text; }); return 'data:,'; }"
    )
    browser.evaluate("""(() => {
        const holder = document.querySelector('[data-table="results"]'), row = holder.querySelector('tbody').rows[0];
        delete row.cells[0].dataset.v;
        row.cells[0].querySelector('span').textContent = '=1+1';
        row.cells[1].dataset.v = '-0.5';
        holder.querySelector('.download').click();
    })()""")
    text = downloaded(browser)
    first = next(iter(list(csv.reader(io.StringIO(text)))[1:]))
    assert first[0] == "'=1+1"
    assert "-0.5" in first[1:3]


@pytest.mark.parametrize("width", [390, 1280])
def test_names_are_never_cut_and_nothing_scrolls_sideways(browser: Chromium, bench: Path, width: int) -> None:
    browser.open(bench / "report.html", width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    hidden = """[...document.querySelectorAll('th span, td span, svg text, h1, h2, h3, option')].filter(e => {
        const s = getComputedStyle(e); return s.textOverflow === 'ellipsis' || s.maxHeight.endsWith('px')
        && s.overflow === 'hidden'; }).length"""
    assert browser.evaluate(hidden) == 0
    names = """[...document.querySelectorAll('[data-figure="held-out-accuracy"] text.name')].map(
        t => [...t.querySelectorAll('tspan')].map(s => s.textContent).join(''))"""
    assert sorted(browser.evaluate(names)) == sorted(METHODS)
