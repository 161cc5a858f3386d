"""What an operator sees of a deployment: lines with their times in a log, and a last line that lives on a terminal."""

from __future__ import annotations

import re
import time
from io import StringIO

import pytest

from farfield.cli import deployment_console
from farfield.cli.console import SafeConsole
from farfield.cli.deployment_console import DeploymentConsole, line_of

PROGRESS = {
    "kind": "progress",
    "time": 0.0,
    "text": "round 3 of 9, train: 1 of 3 sites have answered after 45 s; waiting for b, c",
    "round": 3,
    "rounds": 9,
    "phase": "train",
    "answered": 1,
    "asked": 3,
    "waiting": "b, c",
    "seconds": 45.0,
}


def test_a_round_has_its_time_its_figures_who_took_part_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    row = {
        "kind": "round",
        "time": 86400.0,
        "text": "round 1 of 10",
        "loss": 0.64441,
        "validation": 0.6,
        "sites": "all 3 sites",
        "left": 190.0,
    }
    assert line_of(row) == (
        "1970-01-02 00:00:00 round 1 of 10: loss 0.6444, source validation 0.6000, all 3 sites, about 3 min left"
    )
    monkeypatch.undo()
    time.tzset()


def test_a_log_has_a_line_about_the_phase_only_when_nothing_else_was_said_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = StringIO()
    now = [100.0]
    monkeypatch.setattr(deployment_console.time, "monotonic", lambda: now[0])
    with DeploymentConsole(SafeConsole(file=written, width=120)) as console:
        for second in range(0, 300, 5):
            now[0] = 100.0 + second
            console.show(PROGRESS)
    lines = written.getvalue().splitlines()
    assert len(lines) == 9, "one in 30 seconds, of 60 rows in 300"
    assert all(line.endswith("waiting for b, c") for line in lines)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d round 3 of 9", line) for line in lines)


def test_a_terminal_has_a_last_line_with_the_phase_under_way_and_lines_above_it() -> None:
    written = StringIO()
    terminal = SafeConsole(file=written, width=120, force_terminal=True, color_system=None)
    with DeploymentConsole(terminal) as console:
        console.show(PROGRESS)
        assert console._live is not None
        console._live.refresh()
        console.show({"kind": "problem", "time": 0.0, "text": "round 3, train: site 'b': late"})
    text = written.getvalue()
    assert re.search(r"round 3 of 9, train: 1 of 3 sites after \d+ s; waiting for b, c", text)
    assert "site 'b': late" in text
