"""The commands themselves: a bench that is killed and resumed, and a view that is killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Chromium, executable
from tests.watch.serving import ask

FARFIELD = (sys.executable, "-c", "from farfield.cli.main import run; run()")
BENCH = (
    "bench",
    "--no-references",
    "rect-4",
    "-a",
    "fedavg,fediir",
    "--no-references",
    "--held-out",
    "x=2",
    "--seeds",
    "1",
    "-q",
    "-j",
    "2",
)
ROUNDS = ("--rounds", "150")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "ab") as file:
        process = subprocess.Popen([*FARFIELD, *arguments], stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(check: Callable[[], Any], what: str, log: Path) -> Any:
    until = time.monotonic() + 120
    while not (found := check()):
        assert time.monotonic() < until, f"{what}: {log.read_text()[-2000:]}"
        time.sleep(0.1)
    return found


def state_at(port: int) -> dict[str, Any] | None:
    try:
        status, _, body = ask(port, "/state")
    except OSError:
        return None
    assert status == 200
    return dict(json.loads(body))


def test_ctrl_c_ends_the_view_at_once_also_with_a_page_that_holds_a_connection(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running("watch", str(tmp_path / "b"), "--port", "0", "--no-open", log=log) as view:
        found = wait_for(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/", log.read_text()), "the address", log)
        assert "the folder does not exist yet" in wait_for(
            lambda: "yet" in log.read_text() and log.read_text(), "", log
        )
        with socket.create_connection(("127.0.0.1", int(found[1]))) as idle:
            idle.sendall(b"GET /state HTTP/1.1\r\n")  # and never the rest
            view.send_signal(signal.SIGINT)
            assert view.wait(timeout=20) == 0
    assert "stopped watching" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.long
@pytest.mark.skipif(executable() is None, reason="there is no Chromium on this machine")
def test_the_page_follows_a_bench_through_kills_of_the_bench_and_of_the_view(tmp_path: Path) -> None:
    out, log, port = tmp_path / "b", tmp_path / "log", free_port()
    watch = ("watch", str(out), "--port", str(port), "--no-open")
    with Chromium() as browser:

        def text(id: str) -> str:
            return str(browser.evaluate(f"document.getElementById('{id}').textContent"))

        def rounds() -> int:
            return int((re.match(r"\d+", text("rounds")) or ["0"])[0])

        with running(*watch, log=log):
            wait_for(lambda: state_at(port), "the server", log)
            browser.open(f"http://127.0.0.1:{port}/", 390, scheme="dark")
            wait_for(lambda: "does not exist yet" in text("headline"), "the page that waits", log)
            with running(*BENCH, *ROUNDS, "--out", str(out), log=log) as bench:
                wait_for(lambda: rounds() >= 20, "the first rounds", log)
                assert "is running" in text("headline")
                os.killpg(bench.pid, signal.SIGKILL)
            before = rounds()
            assert browser.evaluate("document.getElementById('report').hidden") is True
            assert browser.complaints == []
        # The view is started again while the bench goes on, on the same port; the page finds it by itself.
        resumed = (*BENCH, *ROUNDS, "--out", str(out), "--resume")
        with running(*resumed, log=log) as bench, running(*watch, log=log):
            wait_for(lambda: rounds() > before, "progress after both restarts", log)
            assert bench.wait(timeout=240) == 0, log.read_text()[-2000:]
            wait_for(lambda: "has ended: 2 of 2 runs" in text("headline"), "the end", log)
            wait_for(lambda: browser.evaluate("document.getElementById('report').hidden") is False, "link", log)
            state = state_at(port)
            assert state is not None
            assert state["rounds"] == {"done": 300, "total": 300}
            assert ask(port, "/report.html")[2] == (out / "report.html").read_bytes()
    looks = [json.loads(line)["purpose"] for line in (out / "looks.jsonl").read_text().splitlines()]
    assert looks == ["bench"]


@pytest.mark.long
def test_watching_does_not_keep_a_bench_from_starting_or_change_a_bit(tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    hashes = []
    for out, watched in ((tmp_path / "a", False), (tmp_path / "b", True)):
        with running("watch", str(out), "--port", str(port), "--no-open", log=log):
            wait_for(lambda: state_at(port), "the server", log)
            with running(*BENCH, "--rounds", "20", "--out", str(out), log=log) as bench:
                while watched and bench.poll() is None:
                    state_at(port)
                assert bench.wait(timeout=240) == 0, log.read_text()[-2000:]
        hashes.append([json.loads(p.read_text())["model_sha256"] for p in sorted(out.rglob("result.json"))])
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 2
