"""The live view in a browser: it moves with the records, survives a restart, and shows names as text."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

import farfield as ff
from farfield.records.atomic import append_row, keep_rows_until, read_rows
from farfield.tasks.task import Task
from tests.browser.chromium import Chromium, executable
from tests.toy import domain, task
from tests.watch.serving import served

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(executable() is None, reason="there is no Chromium on this machine"),
]
EVIL = "<script>document.title='run'</script><img src=x onerror=document.title='run'>"
LONG = "a-hospital-whose-name-goes-on-and-on-without-any-place-to-break-it" * 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "b"
    own: Task = task()
    domains = (domain(EVIL), domain(LONG, 0.5), domain("c", 1.0))
    odd = Task(own.name, own.kind, domains, own.classes, own.model, defaults=own.defaults)
    ff.bench(odd, {LONG: "fedprox", "fedavg": "fedavg"}, rounds=6, seeds=1, out=folder).report()
    return folder


@pytest.fixture
def bench(made: Path, tmp_path: Path) -> Path:
    """A bench in which one run has made 2 of 6 rounds."""
    folder = Path(shutil.copytree(made, tmp_path / "b"))
    run = running(folder)
    (run / "result.json").unlink()
    keep_rows_until(run / "rounds.jsonl", 2)
    return folder


def running(folder: Path) -> Path:
    return folder / "runs" / "fedavg" / "c" / "seed-0"


def rest(made: Path) -> list[dict[str, object]]:
    return list(read_rows(running(made) / "rounds.jsonl"))[2:]


def wait_for(check: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 60
    while not check():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def text(browser: Chromium, id: str) -> str:
    return str(browser.evaluate(f"document.getElementById('{id}').textContent"))


def test_progress_moves_in_an_open_page_that_survives_a_restart_of_the_server(
    browser: Chromium, made: Path, bench: Path
) -> None:
    browser.complaints.clear()
    with served(bench) as server:
        port = server.port
        browser.open(server.url, 1280)
        wait_for(lambda: text(browser, "rounds") == "32 of 36 rounds", "the first state")
        first, second, third, last = rest(made)
        append_row(running(bench) / "rounds.jsonl", first)
        wait_for(lambda: text(browser, "rounds") == "33 of 36 rounds", "a round more")
        assert "Held-out results are not shown while a bench runs" in text(browser, "note")
        assert browser.evaluate("document.getElementById('report').hidden") is True
        assert browser.evaluate("document.querySelectorAll('#loss path.curve').length") == 2
        assert browser.complaints == []
    for row in (second, third):
        append_row(running(bench) / "rounds.jsonl", row)
    wait_for(lambda: "No connection to farfield watch" in text(browser, "lost"), "the loss")
    assert text(browser, "rounds") == "33 of 36 rounds"
    with served(bench, port):
        wait_for(lambda: text(browser, "rounds") == "35 of 36 rounds", "the page after the restart")
        assert browser.evaluate("document.getElementById('lost').hidden") is True
        append_row(running(bench) / "rounds.jsonl", last)
        shutil.copy(running(made) / "result.json", running(bench) / "result.json")
        wait_for(lambda: "has ended: 6 of 6 runs" in text(browser, "headline"), "the end")
        wait_for(lambda: browser.evaluate("document.getElementById('report').hidden") is False, "the link")
        browser.complaints.clear()
        browser.evaluate("document.querySelector('#report a').click()")
        wait_for(
            lambda: browser.evaluate("location.pathname + document.readyState") == "/report.htmlcomplete", "report"
        )
        assert browser.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_page_fits_follows_the_reader_and_takes_names_as_text(
    browser: Chromium, bench: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    browser.complaints.clear()
    with served(bench) as server:
        browser.open(server.url, width, scheme=scheme)
        wait_for(lambda: text(browser, "rounds") == "32 of 36 rounds", "the state")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        shade = (
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b, 0)"
        )
        assert (browser.evaluate(shade) < 200) is (scheme == "dark")
        assert LONG in text(browser, "methods")
        assert browser.evaluate("document.title") == "running: toy"
        assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert browser.evaluate("Array.from(document.querySelectorAll('a[href]')).every(a => a.host === location.host)")
    assert browser.complaints == []


def test_updates_can_be_paused_by_keyboard(browser: Chromium, made: Path, bench: Path) -> None:
    with served(bench) as server:
        browser.open(server.url, 1280)
        wait_for(lambda: text(browser, "rounds") == "32 of 36 rounds", "the state")
        focus = "document.activeElement.id || document.activeElement.className"
        seen = []
        for _ in range(4):
            browser.press("Tab")
            seen.append(browser.evaluate(focus))
        assert seen[0] == "pause"
        assert seen[1] == "scroll"  # a wide table can be scrolled by keyboard
        browser.evaluate("document.getElementById('pause').focus()")
        browser.press("Enter")
        assert text(browser, "pause") == "Go on with updates"
        append_row(running(bench) / "rounds.jsonl", rest(made)[0])
        time.sleep(1.5)
        assert text(browser, "rounds") == "32 of 36 rounds"
        browser.press("Enter")
        wait_for(lambda: text(browser, "rounds") == "33 of 36 rounds", "the page after the pause")
