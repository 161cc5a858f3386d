"""Signs of life: within a round, on a terminal and in a log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from farfield.cli import progress as display
from farfield.cli.progress import SweepDisplay, figures
from farfield.runs import rounds
from farfield.runs.plan import Job, make_plan
from farfield.runs.rounds import Progress
from farfield.runs.single_run import run_job
from farfield.tasks import load

JOB = Job("fedavg", "0", 1)


def test_a_run_tells_of_each_client_within_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "TELL_EVERY", 0.0)
    task = load("rotated-digits")
    plan = make_plan(task, algorithms=["fedavg"], held_out=["0"], seeds=[1], rounds=2)
    seen: list[Progress] = []
    run_job(plan, task, JOB, tmp_path / "run", watch=seen.append)
    first = [(p.round, p.phase, p.answered, p.asked) for p in seen[:13]]
    assert first[:6] == [(0, "train", n, 5) for n in range(6)]
    assert first[6:12] == [(0, "evaluate", n, 5) for n in range(6)]
    assert first[12] == (1, None, 0, 0)
    assert {p.round for p in seen if p.phase is not None} == {0, 1}


def test_clients_that_answer_at_once_are_not_told_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "TELL_EVERY", 1e9)
    task = load("rotated-digits")
    plan = make_plan(task, algorithms=["fedavg"], held_out=["0"], seeds=[1], rounds=2)
    seen: list[Progress] = []
    run_job(plan, task, JOB, tmp_path / "run", watch=seen.append)
    assert [(p.round, p.phase) for p in seen] == [(0, "train"), (1, None), (2, None)]


def test_the_line_says_who_has_answered_first() -> None:
    assert figures(Progress(JOB, 3, 9, 0.25, 0.875, "train", 2, 5)) == "train 2/5 val. 0.875 loss 0.250"
    assert figures(Progress(JOB, 3, 9, 0.25)) == "loss 0.250"
    assert figures(Progress(JOB, 0, 9)) == ""


def test_a_terminal_shows_the_phase_and_the_time() -> None:
    to = io.StringIO()
    with SweepDisplay(Console(file=to, force_terminal=True, width=80)) as shown:
        shown.begin(2, 0)
        shown.progress(Progress(JOB, 0, 9, phase="head_gradient", answered=2, asked=50))
    assert "head_gradient 2/50" in to.getvalue()
    assert "00:00" in to.getvalue()


def test_a_log_hears_of_a_long_run_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    to = io.StringIO()
    clock = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    with SweepDisplay(Console(file=to, width=120)) as shown:
        shown.begin(2, 0)
        for second, answered in ((30, 1), (61, 2), (90, 3), (125, 4)):
            clock[0] = second
            shown.progress(Progress(JOB, 0, 9, phase="train", answered=answered, asked=5))
        shown.finished(JOB, None)
        clock[0] = 180
        shown.progress(Progress(JOB, 1, 9))
    lines = to.getvalue().splitlines()
    assert [line.strip() for line in lines] == [
        "… fedavg, 0 held out, seed 1: 0 of 9 rounds, train: client 2 of 5, 01:01",
        "… fedavg, 0 held out, seed 1: 0 of 9 rounds, train: client 4 of 5, 02:05",
        "1/2 fedavg, 0 held out, seed 1, about 2 min left",
    ]


def test_quiet_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    to = io.StringIO()
    clock = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    with SweepDisplay(Console(file=to, width=120), quiet=True) as shown:
        shown.begin(2, 0)
        clock[0] = 1e6
        shown.progress(Progress(JOB, 1, 9))
    assert to.getvalue() == ""
